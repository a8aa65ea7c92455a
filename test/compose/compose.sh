#!/usr/bin/env bash
# Runs deploy/compose.yaml, or deploy/compose.secure.yaml with SECURE=1, where no image registry can be reached: starts a Docker engine if none answers, makes
# stand-ins for the base images from this machine's own programs, and hands both to the same compose file and
# Dockerfile that users run.
#
#   compose.sh engine      make sure that a Docker engine answers
#   compose.sh images      build the stand-in base images that are missing
#   compose.sh up|down|smoke|logs
#   compose.sh compose ... docker compose with the environment of the stand-ins
#
# Needs root, Debian's docker.io, redis-server and busybox-static, and the compose plugin in .tmp/bin (make tools-compose).
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
work=$root/.tmp/compose
bin=$root/.tmp/bin
mkdir -p "$work"

export GO_IMAGE=deltaplane-standin/golang:local
export NATS_IMAGE=deltaplane-standin/nats:local
export REDIS_IMAGE=deltaplane-standin/redis:local
# The stand-ins and the plugin must not leak into the user's own Docker configuration.
export DOCKER_CONFIG=$work/docker
VERSION=${VERSION:-$(git describe --always --dirty 2>/dev/null || echo dev)}
export VERSION

say() { printf 'compose: %s\n' "$*" >&2; }

engine() {
	mkdir -p "$DOCKER_CONFIG/cli-plugins"
	[ -f "$DOCKER_CONFIG/config.json" ] || echo '{}' >"$DOCKER_CONFIG/config.json"
	[ -x "$bin/docker-compose" ] || { say "$bin/docker-compose is missing: make tools-compose"; return 1; }
	ln -sf "$bin/docker-compose" "$DOCKER_CONFIG/cli-plugins/docker-compose"
	docker info >/dev/null 2>&1 && return 0
	command -v dockerd >/dev/null || { say "no Docker engine answers and dockerd is not installed"; return 1; }
	[ "$(id -u)" = 0 ] || { say "no Docker engine answers; starting one needs root"; return 1; }
	local driver attempt
	for driver in overlay2 vfs; do
		for attempt in 1 2 3; do
			dockerd_with "$driver" && return 0
			# Another driver would not know what was made with this one: only where the kernel or the filesystem refuses it.
			! grep -q 'graphdriver\|driver not supported' "$work/dockerd.log" || break
			sleep 2 # an engine that was killed may still be going away
		done
		[ "$attempt" != 3 ] || break
	done
	tail -20 "$work/dockerd.log" >&2
	say "dockerd did not start"
	return 1
}

# dockerd_with DRIVER: starts an engine and waits until it answers.
dockerd_with() {
	say "starting dockerd ($1)"
	rm -f /var/run/docker.pid
	# Without descriptors of ours: anyone who waits for this script's output must not wait for the engine.
	setsid dockerd --storage-driver="$1" >"$work/dockerd.log" 2>&1 </dev/null &
	local pid=$!
	echo "$pid" >"$work/dockerd.pid"
	for _ in $(seq 120); do
		docker info >/dev/null 2>&1 && return 0
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.5
	done
	kill "$pid" 2>/dev/null || true
	wait "$pid" 2>/dev/null || true
	return 1
}

# Stops the engine if "engine" started it.
engine_stop() {
	[ -f "$work/dockerd.pid" ] || return 0
	local pid
	pid=$(cat "$work/dockerd.pid")
	[ "$(ps -o comm= -p "$pid" || true)" = dockerd ] && kill "$pid"
	for _ in $(seq 40); do
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.5
	done
	rm -f "$work/dockerd.pid"
}

# have IMAGE KEY: the stand-in exists and was made from the same things.
have() { [ "$(docker image inspect -f '{{index .Config.Labels "standin"}}' "$1" 2>/dev/null)" = "$2" ]; }

hash() { sha256sum | cut -c1-16; }

# shell FOLDER: busybox as /bin/sh and its commands.
shell() {
	mkdir -p "$1/bin" "$1/tmp" "$1/etc"
	cp /bin/busybox "$1/bin/busybox"
	local applet
	for applet in sh ls cat mkdir chown chmod wget sleep env id touch rm cp mv grep; do
		ln -sf busybox "$1/bin/$applet"
	done
	chmod 1777 "$1/tmp"
	printf 'root:x:0:0:root:/root:/bin/sh\nredis:x:999:1000:redis:/data:/bin/sh\n' >"$1/etc/passwd"
}

golang_image() {
	local goroot key folder=$work/golang
	goroot=$(go env GOROOT)
	key=$({ go version; cat go.mod go.sum; } | hash)
	have "$GO_IMAGE" "$key" && return 0
	say "making $GO_IMAGE"
	# The modules and compiled packages of this go.mod, from the machine's module cache: a build in the container
	# then reaches for no network.
	export_go() { env GOFLAGS='-modcacherw -buildvcs=false' GOMODCACHE="$work/mod" GOCACHE="$work/gocache" \
		GOPROXY="file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)" GONOSUMDB='*' GOTOOLCHAIN=local "$@"; }
	go mod download
	export_go go mod download
	CGO_ENABLED=0 go list -deps -f '{{with .Module}}{{if not .Main}}{{$.ImportPath}}{{end}}{{end}}' ./cmd/deltaplane |
		CGO_ENABLED=0 export_go xargs nice go build -trimpath -buildvcs=false
	rm -rf "$folder"
	shell "$folder"
	mkdir -p "$folder/etc/ssl/certs" "$folder/usr/local" "$folder/go" "$folder/root"
	cp -L /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/"
	cp -a "$goroot" "$folder/usr/local/go"
	rm -rf "$folder/usr/local/go/test" "$folder/usr/local/go/api" "$folder/usr/local/go/doc"
	tar -C "$work" -cf - --transform 's,^mod,go/pkg/mod,;s,^gocache,go/cache,' mod gocache |
		tar -C "$folder" -xf -
	tar -C "$folder" -cf - . | docker import \
		-c "ENV PATH=/usr/local/go/bin:/bin GOPATH=/go GOCACHE=/go/cache GOTOOLCHAIN=local GOPROXY=off GONOSUMDB=* HOME=/root" \
		-c "LABEL standin=$key" - "$GO_IMAGE" >/dev/null
	rm -rf "$folder"
}

nats_image() {
	local version key folder=$work/nats
	version=$(go list -m -f '{{.Version}}' github.com/nats-io/nats-server/v2)
	key=$(echo "nats $version 1" | hash)
	have "$NATS_IMAGE" "$key" && return 0
	say "making $NATS_IMAGE"
	rm -rf "$folder"
	shell "$folder"
	CGO_ENABLED=0 nice go build -trimpath -o "$folder/bin/nats-server" github.com/nats-io/nats-server/v2
	tar -C "$folder" -cf - . | docker import -c "ENV PATH=/bin" -c "LABEL standin=$key" - "$NATS_IMAGE" >/dev/null
	rm -rf "$folder"
}

redis_image() {
	local key folder=$work/redis program
	key=$({ redis-server --version; echo 1; } | hash)
	have "$REDIS_IMAGE" "$key" && return 0
	say "making $REDIS_IMAGE"
	rm -rf "$folder"
	shell "$folder"
	for program in redis-server redis-cli; do
		program=$(command -v "$program")
		cp -L "$program" "$folder/bin/"
		ldd "$program" | grep -o '/[^ ]*' | while read -r lib; do
			mkdir -p "$folder$(dirname "$lib")"
			cp -L "$lib" "$folder$lib"
		done
	done
	mkdir -p "$folder/data"
	chown 999:1000 "$folder/data"
	tar -C "$folder" -cf - . | docker import -c "ENV PATH=/bin" -c "LABEL standin=$key" - "$REDIS_IMAGE" >/dev/null
	rm -rf "$folder"
}

images() { golang_image; nats_image; redis_image; }

file=deploy/compose.yaml client=() curl=() scheme=http
if [ -n "${SECURE:-}" ]; then
	file=deploy/compose.secure.yaml scheme=https
	curl=(--cacert "$work/admin/ca.crt" --cert "$work/admin/tls.crt" --key "$work/admin/tls.key")
	client=(--tls-ca "$work/admin/ca.crt" --tls-cert "$work/admin/tls.crt" --tls-key "$work/admin/tls.key")
fi
compose() { docker compose -f "$file" "$@"; }

# Every service healthy, the published ports answer, and a Job becomes pods that the published indexer knows.
smoke() {
	local unhealthy
	unhealthy=$(compose ps --all --format '{{.Service}} {{.State}} {{.Health}}' | grep -vE '^(volumes|certs|redis-volume) exited' | grep -v ' running healthy$' || true)
	[ -z "$unhealthy" ] || { say "not healthy:"; echo "$unhealthy" >&2; return 1; }
	go build -o "$work/deltaplane" ./cmd/deltaplane
	deltaplane() { "$work/deltaplane" "$@" "${client[@]}"; }
	local port
	for port in "${INDEX_PORT:-7441}" "${QUEUE_PORT:-7442}" "${REFLECTOR_PORT:-7443}"; do
		deltaplane health "127.0.0.1:$port" >/dev/null || { say "port $port does not answer"; return 1; }
	done
	local api=$scheme://127.0.0.1:${API_PORT:-7448} job=smoke-$$ i
	deltaplane health "$api/readyz" >/dev/null
	[ -z "${SECURE:-}" ] || { strangers && secrets; } || return 1
	curl -fsS "${curl[@]}" -o /dev/null -H 'Content-Type: application/json' "$api/apis/batch/v1/namespaces/default/jobs" -d '{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "'$job'"},
		"spec": {"completions": 2, "parallelism": 2, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}}}}'
	for i in $(seq 120); do
		if deltaplane get jobs "default/$job" --index-url "127.0.0.1:${INDEX_PORT:-7441}" -o json 2>/dev/null |
			jq -e '[.. | objects | select(.type? == "Complete" and .status? == "True")] | length > 0' >/dev/null; then
			say "smoke: Job $job completed and the index knows it"
			through_gateway "$job" && through_console "$job"
			return
		fi
		sleep 0.5
	done
	say "smoke: Job $job did not complete within 60 s"
	deltaplane queue ls --queue-url "127.0.0.1:${QUEUE_PORT:-7442}" >&2 || true
	deltaplane queue describe dev/job "default/$job" --queue-url "127.0.0.1:${QUEUE_PORT:-7442}" >&2 || true
	compose logs --tail 20 controllers-1 controllers-2 node >&2 || true
	return 1
}

# The gateway lists what the index holds, from there.
through_gateway() {
	local list=$scheme://127.0.0.1:${GATEWAY_PORT:-7449}/apis/batch/v1/namespaces/default/jobs?resourceVersion=0
	curl -fsS "${curl[@]}" -D "$work/gateway.headers" "$list" |
		jq -e --arg job "$1" '.kind == "JobList" and any(.items[]; .metadata.name == $job and .metadata.managedFields != null)' >/dev/null ||
		{ say "the gateway does not list Job $1"; return 1; }
	grep -qi '^x-deltaplane-served-by: index' "$work/gateway.headers" || { say "the gateway does not list from the index"; return 1; }
	[ -z "${SECURE:-}" ] || ! curl -fsS --cacert "$work/admin/ca.crt" -o /dev/null "$list" 2>/dev/null || { say "a stranger lists through the gateway"; return 1; }
	say "smoke: the gateway lists Job $1"
}

# The console finds it too; where callers are asked who they are, with the operator's token alone.
through_console() {
	local url=$scheme://127.0.0.1:${CONSOLE_PORT:-7450}/deltaplane.console.v1.ConsoleService/Search answer
	search() {
		curl -sS "$@" -H 'Content-Type: application/json' -H 'Connect-Protocol-Version: 1' -d '{"text": "jobs default/'"$job"'"}' "$url"
	}
	local job=$1 ask=()
	if [ -n "${SECURE:-}" ]; then
		ask=(--cacert "$work/admin/ca.crt")
		answer=$(search "${ask[@]}")
		jq -e '.code == "unauthenticated" and .found == null' >/dev/null <<<"$answer" || { say "who shows no token is answered by the console: $answer"; return 1; }
		ask+=(-H "Authorization: Bearer $(cat "$work/admin/token")")
	fi
	answer=$(search "${ask[@]}")
	jq -e --arg key "default/$job" 'any(.found[]; .key == $key)' >/dev/null <<<"$answer" || { say "the console does not find Job $job: $answer"; return 1; }
	say "smoke: the console finds Job $job"
}

# What shows no certificate gets nothing but health.
strangers() {
	local target
	for target in --index-url=127.0.0.1:${INDEX_PORT:-7441}; do
		! "$work/deltaplane" get pods "$target" --tls-ca "$work/admin/ca.crt" >"$work/stranger.log" 2>&1 || { say "a stranger reads pods"; return 1; }
		grep -q "bearer token or a client certificate" "$work/stranger.log" || { say "a stranger receives:"; cat "$work/stranger.log" >&2; return 1; }
	done
	! curl -fsS --cacert "$work/admin/ca.crt" -o /dev/null "https://127.0.0.1:${API_PORT:-7448}/api/v1/pods" 2>/dev/null || { say "a stranger reads the API"; return 1; }
	say "smoke: strangers are refused"
}

# A secret is served to who may get it, and lies nowhere in the volumes of NATS and of the indexers.
secrets() {
	local text i volume
	text=$(printf 'hush-%s-%s' $$ "$RANDOM" | base64)
	curl -fsS "${curl[@]}" -o /dev/null -H 'Content-Type: application/json' "https://127.0.0.1:${API_PORT:-7448}/api/v1/namespaces/default/secrets" -d '{
		"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "smoke-'$$'"}, "data": {"password": "'"$text"'"}}'
	deltaplane reflection add secrets --reflector-url "127.0.0.1:${REFLECTOR_PORT:-7443}" >/dev/null
	for i in $(seq 60); do
		deltaplane get secrets "default/smoke-$$" --index-url "127.0.0.1:${INDEX_PORT:-7441}" -o json 2>/dev/null | grep -q "$text" && break
		sleep 0.5
	done
	[ "$i" -lt 60 ] || { say "the index does not serve a secret"; return 1; }
	compose restart indexer-1 indexer-2 >/dev/null 2>&1 # a stop writes checkpoints
	compose up --detach --wait --wait-timeout 60 >/dev/null 2>&1
	for volume in nats index-1 index-2; do
		volume=$(docker volume inspect -f '{{.Mountpoint}}' "deltaplane-secure_$volume")
		[ -n "$(find "$volume" -type f -size +0 | head -1)" ] || { say "$volume is empty"; return 1; }
		! grep -rqF "$text" "$volume" || { say "$volume holds a secret as it is"; return 1; }
	done
	say "smoke: a secret is encrypted in the log and in checkpoints"
}

command=${1:-}
[ $# -eq 0 ] || shift
case $command in
engine) engine ;;
engine-stop) engine_stop ;;
images) engine && images ;;
up)
	engine
	images
	compose build --quiet "$([ -n "${SECURE:-}" ] && echo certs || echo volumes)"
	if ! compose up --detach --wait --wait-timeout 180 "$@"; then
		compose ps --all >&2
		compose logs --tail 40 >&2
		exit 1
	fi
	if [ -n "${SECURE:-}" ]; then
		rm -rf "$work/admin"
		compose cp certs:/certs/admin "$work/admin"
	fi
	;;
down)
	engine
	compose down --volumes --remove-orphans --timeout 30 "$@"
	docker image prune --force >/dev/null # stages of earlier builds
	;;
smoke) smoke ;;
logs) compose logs "$@" ;;
compose) compose "$@" ;;
*)
	sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
