#!/bin/sh
# Builds containerd, its shim and ctr from Go modules into a folder:  ./build.sh FOLDER
# and runc, where the machine has none. What is there in the versions that go.mod pins is not built again.
#
# A module of its own: nothing of it reaches the programs of Deltaplane. Snapshotters that need libraries of the
# system are left out. New versions: go get -tool github.com/containerd/containerd/v2/cmd/containerd@VERSION && go mod tidy
set -eu
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"

containerd=github.com/containerd/containerd/v2
version=$(go list -m -f '{{.Version}}' "$containerd")
programs="containerd containerd-shim-runc-v2 ctr"
command -v runc >/dev/null || programs="$programs runc"
stamp="$version $(go version) $programs"
if [ "$(cat "$out/.stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi

start=$(date +%s)
rm -f "$out/.stamp"
flags="-s -w -X $containerd/version.Version=$version -X $containerd/version.Revision=module"
for program in $programs; do
	package=$containerd/cmd/$program
	[ "$program" != runc ] || package=github.com/opencontainers/runc
	go build -trimpath -tags no_btrfs,no_devmapper,no_zfs,no_aufs -ldflags "$flags" -o "$out/$program" "$package"
done
printf '%s\n' "$stamp" >"$out/.stamp"
echo "containerd $version built in $(($(date +%s) - start)) s"
