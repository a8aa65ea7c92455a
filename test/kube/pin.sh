#!/bin/sh
# Pins the versions of Kubernetes and KWOK:  ./pin.sh v1.36.3 v0.8.0
#
# k8s.io/kubernetes replaces its staging modules by folders that exist only in its own repository, so its
# replace block is repeated here with the published version of each. etcd is the version that Kubernetes
# pins. KWOK gets the same client libraries, so that both builds share what they compile.
set -eu
kubernetes=$1 kwok=$2
staging=v0.${kubernetes#v1.}
cd "$(dirname "$0")"

gomod=$(go mod download -json "k8s.io/kubernetes@$kubernetes" | sed -n 's/^.*"GoMod": "\(.*\)".*$/\1/p')
modules=$(sed -n 's|^[[:space:]]*\(k8s.io/[a-z-]*\) => ./staging/.*$|\1|p' "$gomod")
etcd=$(sed -n 's|^.*go.etcd.io/etcd/server/v3 \(v[^ ]*\).*$|\1|p' "$gomod")
for m in $modules; do
	go mod edit -replace "$m=$m@$staging"
done
go mod edit -require "k8s.io/kubernetes@$kubernetes" -require "go.etcd.io/etcd/server/v3@$etcd"
go mod tidy

cd kwok
go mod edit -require "sigs.k8s.io/kwok@$kwok"
go mod tidy
for m in $modules; do
	if go mod edit -json | grep -q "\"Path\": \"$m\""; then
		go mod edit -require "$m@$staging"
	fi
done
go mod tidy
