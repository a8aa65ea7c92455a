{{- /* Scripts of the pods, which have sh, awk and redis-cli. */ -}}
{{- define "deltaplane.redisConf" -}}
dir /data
appendonly yes
# An add is acknowledged when it is on disk; a full store refuses instead of forgetting.
appendfsync always
save ""
maxmemory {{ .Values.redis.maxMemory }}
maxmemory-policy noeviction
protected-mode no
{{- if gt (int .Values.redis.replicas) 1 }}
# What is acknowledged is on its way to a replica; a primary that is cut off takes nothing more after 10 s.
min-replicas-to-write 1
min-replicas-max-lag 10
repl-diskless-sync-delay 0
{{- end }}
{{- if include "deltaplane.secure" . }}
port 0
tls-port 6379
tls-cert-file /etc/redis-tls/tls.crt
tls-key-file /etc/redis-tls/tls.key
tls-ca-cert-file /etc/redis-tls/ca.crt
tls-auth-clients yes
tls-replication yes
{{- else }}
port 6379
{{- end }}
{{- end -}}

{{- define "deltaplane.sentinelConf" -}}
{{- if include "deltaplane.secure" . -}}
port 0
tls-port 26379
tls-cert-file /etc/redis-tls/tls.crt
tls-key-file /etc/redis-tls/tls.key
tls-ca-cert-file /etc/redis-tls/ca.crt
tls-auth-clients yes
tls-replication yes
{{- else -}}
port 26379
{{- end }}
protected-mode no
dir /data/sentinel
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
{{- end -}}

{{- define "deltaplane.redisCli" -}}
redis-cli{{ if include "deltaplane.secure" . }} --tls --cert /etc/redis-tls/tls.crt --key /etc/redis-tls/tls.key --cacert /etc/redis-tls/ca.crt{{ end }}
{{- end -}}

{{- /* The most recent answer of most sentinels says who is the primary. */ -}}
{{- define "deltaplane.redisStart" -}}
#!/bin/sh
# Starts this pod's Redis: as the primary that most sentinels know, or as its replica.
set -eu
hosts="{{ include "deltaplane.redisHosts" . }}"
self=$POD_NAME.{{ include "deltaplane.fullname" . }}-redis
cli="timeout 3 {{ include "deltaplane.redisCli" . }} --raw"

# primary prints the host that the sentinels with the highest epoch name, once most of them answer.
primary() {
  all=0 answers=0 best=-1 found=
  for host in $hosts; do
    all=$((all + 1))
    said=$($cli -h "$host" -p 26379 sentinel master deltaplane 2>/dev/null | awk '
      NR % 2 { key = $0; next } key == "ip" { ip = $0 } key == "config-epoch" { epoch = $0 } END { if (ip != "") print epoch, ip }') || continue
    [ -n "$said" ] || continue
    answers=$((answers + 1))
    if [ "${said%% *}" -gt "$best" ]; then best=${said%% *} found=${said#* }; fi
  done
  [ $((answers * 2)) -gt "$all" ] && echo "$found"
}

# elsewhere says whether another server has data.
elsewhere() {
  for host in $hosts; do
    [ "$host" != "$self" ] || continue
    size=$($cli -h "$host" -p 6379 dbsize 2>/dev/null) || continue
    case $size in "" | *[!0-9]* | 0) ;; *) return 0 ;; esac
  done
  return 1
}

while :; do
  if first=$(primary); then
    if [ "$first" != "$self" ]; then
      exec redis-server /etc/redis/redis.conf --replica-announce-ip "$self" --replicaof "$first" 6379
    fi
    # A primary that begins with nothing would have its replicas forget everything: the sentinels choose one of them.
    if [ -d /data/appendonlydir ] || ! elsewhere; then
      exec redis-server /etc/redis/redis.conf --replica-announce-ip "$self"
    fi
    echo "this server is the primary and its folder is empty: waiting until another one is chosen"
  else
    echo "waiting for most of the sentinels"
  fi
  sleep 1
done
{{- end -}}

{{- define "deltaplane.sentinelStart" -}}
#!/bin/sh
# Starts this pod's sentinel, which keeps what it learns in its configuration.
set -eu
first={{ include "deltaplane.redisHosts" . | splitList " " | first }}
self=$POD_NAME.{{ include "deltaplane.fullname" . }}-redis
mkdir -p /data/sentinel
if [ ! -s /data/sentinel/sentinel.conf ]; then
  # Its name has to be known before it can be watched.
  until getent hosts "$first" >/dev/null; do sleep 1; done
  {
    cat /etc/redis/sentinel.conf
    echo
    echo "sentinel announce-ip $self"
    echo "sentinel announce-port 26379"
    echo "sentinel monitor deltaplane $first 6379 {{ add (div (int .Values.redis.replicas) 2) 1 }}"
    echo "sentinel down-after-milliseconds deltaplane 5000"
    echo "sentinel failover-timeout deltaplane 10000"
  } >/data/sentinel/new.conf
  mv /data/sentinel/new.conf /data/sentinel/sentinel.conf
fi
exec redis-server /data/sentinel/sentinel.conf --sentinel
{{- end -}}
