#!/usr/bin/env bash
# Unpacks a newer redis-server or valkey-server from another suite of the machine's own Debian mirror, with its own
# libraries and loader beside it, so that nothing of the machine is replaced. Prints the path of a program to run it by,
# which is what DELTAPLANE_REDIS_SERVER takes:
#   DELTAPLANE_REDIS_SERVER=$(test/redis/install.sh valkey-server trixie .tmp/redis/valkey) go test ./services/queue/redis
set -euo pipefail
package=${1:-valkey-server} suite=${2:-trixie} dir=${3:-.tmp/redis/$1}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
if [ -x "$dir/$package" ] && "$dir/$package" --version >&2; then
	echo "$dir/$package"
	exit
fi
rm -rf "${dir:?}"/*
mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial" "$dir/root"

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -n 1)
: "${mirror:?apt knows no Debian mirror}"
echo "deb $mirror $suite main" >"$dir/sources.list"
: >"$dir/status" # nothing counts as installed: every library is fetched, down to the C library
apt=(apt-get -q -o Dir::Etc::SourceList="$dir/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$dir/lists"
	-o Dir::State::Status="$dir/status" -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=)
"${apt[@]}" update >&2
"${apt[@]}" -y --no-install-recommends --download-only install "$package" >&2
for deb in "$dir"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$dir/root"; done
rm -rf "$dir/cache" "$dir/lists"

loader=$(find "$dir/root" -name 'ld-linux*' | head -n 1)
server=$(find "$dir/root" -name "$package" -path '*bin*' | head -n 1)
libraries=$(find "$dir/root" -name '*.so*' -not -path '*/security/*' -printf '%h\n' | sort -u | paste -sd:)
cat >"$dir/$package" <<END
#!/bin/sh
exec '$loader' --argv0 '$package' --library-path '$libraries' '$(readlink -f "$server")' "\$@"
END
chmod +x "$dir/$package"
"$dir/$package" --version >&2
echo "$dir/$package"
