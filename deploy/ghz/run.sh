#!/bin/bash
# Runs the ghz profiles of this folder against a running Deltaplane (`deltaplane up`, or compose) and prints what
# each reaches beside grpc.health.v1.Health/Check on the same server. Fails when a single call fails.
#
#   deploy/ghz/run.sh [--quick]
#
#   INDEX=host:port  QUEUE=host:port   where the services listen (127.0.0.1:7441, 127.0.0.1:7442)
#   GHZ=PROGRAM                        ghz (.tmp/bin/ghz of the repository, which `make tools-ghz` builds, or the one on PATH)
#   DURATION=10s                       how long each profile runs (2s with --quick, else what the profile says)
set -euo pipefail
cd "$(dirname "$0")"

case "${1:-}" in
--quick) DURATION=${DURATION:-2s} quick=--quick ;;
"") quick= ;;
*) echo "usage: run.sh [--quick]" >&2; exit 2 ;;
esac
index=${INDEX:-127.0.0.1:7441} queue=${QUEUE:-127.0.0.1:7442}
root=$(cd ../.. && pwd)
ghz=${GHZ:-$root/.tmp/bin/ghz}
[ -x "$ghz" ] || ghz=$(command -v ghz) || { echo "ghz is not installed: make tools-ghz" >&2; exit 1; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# number NAME FILE: a number of ghz's summary
number() { sed -n "s/^  *\"$1\": \([0-9.]*\),*$/\1/p" "$2" | head -1; }

# percentile P FILE: a latency of ghz's summary, in ms
percentile() {
	tr -d ' \n' <"$2" | sed -n "s/.*{\"percentage\":$1,\"latency\":\([0-9]*\)}.*/\1/p" | awk '{ printf "%.2f", $1 / 1e6 }'
}

# profile NAME ADDRESS [FLAGS...]: sets qps, calls, p50 and p99
profile() {
	local name=$1 address=$2 file=$out/$1.json
	shift 2
	if ! "$ghz" --config "$name.json" -O pretty "$@" "$address" >"$file" 2>"$out/err"; then
		echo "$name on $address: ghz failed" >&2
		cat "$out/err" "$file" >&2
		exit 1
	fi
	calls=$(number count "$file") qps=$(number rps "$file") p50=$(percentile 50 "$file") p99=$(percentile 99 "$file")
	local ok
	ok=$(sed -n '/"statusCodeDistribution"/,/}/s/.*"OK": \([0-9]*\).*/\1/p' "$file")
	if [ "${calls:-0}" = 0 ] || [ "$calls" != "${ok:-0}" ]; then
		echo "$name on $address: ${ok:-0} of ${calls:-0} calls succeeded" >&2
		sed -n '/"errorDistribution"/,/}/p' "$file" >&2
		exit 1
	fi
}

echo "profile | calls/s | Health/Check | ratio | p50 ms | p99 ms | calls"
for line in index-get:$index index-byindex:$index queue-add:$queue queue-get:$queue queue-settle:$queue; do
	name=${line%%:*} address=${line#*:}
	[ "$name" != queue-add ] || profile queue-configure "$queue"
	profile health "$address" ${DURATION:+-z $DURATION}
	health=$qps
	profile "$name" "$address" ${DURATION:+-z $DURATION}
	awk -v n="$name" -v q="$qps" -v h="$health" -v p50="$p50" -v p99="$p99" -v c="$calls" \
		'BEGIN { printf "%s | %.0f | %.0f | %.2f | %s | %s | %d\n", n, q, h, q / h, p50, p99, c }'
done

# What ghz cannot do: a Settle needs the token its Get returned. This does, and leaves the queue empty.
cd "$root"
go run ./bench drive --queue "$queue" $quick
