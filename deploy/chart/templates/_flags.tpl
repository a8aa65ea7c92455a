{{- define "deltaplane.tlsSecret" -}}
{{ include "deltaplane.fullname" .root }}-{{ .part }}-tls
{{- end -}}

{{- /* Flags of every part. */ -}}
{{- define "deltaplane.commonFlags" -}}
- --log-format={{ .root.Values.log.format }}
- --log-level={{ .root.Values.log.level }}
{{- with .root.Values.otlpEndpoint }}
- --otlp-endpoint={{ . }}
{{- if not (hasPrefix "https://" .) }}
- --otlp-insecure
{{- end }}
{{- end }}
- --admin-listen=:{{ .adminPort }}
{{- if include "deltaplane.secure" .root }}
- --admin-tls-cert=/etc/deltaplane/tls/tls.crt
- --admin-tls-key=/etc/deltaplane/tls/tls.key
- --admin-tls-client-ca=/etc/deltaplane/tls/ca.crt
{{- else }}
- --admin-insecure
{{- end }}
{{- end -}}

{{- /* Flags of the gRPC servers. */ -}}
{{- define "deltaplane.serverFlags" -}}
- --listen=:{{ .port }}
- --drain-grace=3s
{{- if include "deltaplane.secure" .root }}
- --serve-tls-cert=/etc/deltaplane/tls/tls.crt
- --serve-tls-key=/etc/deltaplane/tls/tls.key
- --serve-tls-client-ca=/etc/deltaplane/tls/ca.crt
{{- else }}
- --insecure
{{- end }}
{{- end -}}

{{- /* Flags of those who call the index and the queue. */ -}}
{{- define "deltaplane.clientFlags" -}}
{{- if include "deltaplane.secure" .root }}
- --tls-ca=/etc/deltaplane/tls/ca.crt
- --tls-cert=/etc/deltaplane/tls/tls.crt
- --tls-key=/etc/deltaplane/tls/tls.key
{{- end }}
{{- end -}}

{{- /* Flags of those who use the log. */ -}}
{{- define "deltaplane.natsFlags" -}}
{{- $n := .Values.nats -}}
{{- if $n.enabled -}}
{{- $scheme := ternary "tls" "nats" (eq (include "deltaplane.secure" .) "true") -}}
{{- $full := include "deltaplane.fullname" . -}}
{{- $urls := list -}}
{{- range until (int $n.replicas) -}}
{{- $urls = append $urls (printf "%s://%s-nats-%d.%s-nats:4222" $scheme $full . $full) -}}
{{- end -}}
- --nats-url={{ join "," $urls }}
- --nats-replicas={{ min $n.replicas 3 }}
{{- if include "deltaplane.secure" . }}
- --nats-tls-ca=/etc/deltaplane/tls/ca.crt
- --nats-tls-cert=/etc/deltaplane/tls/tls.crt
- --nats-tls-key=/etc/deltaplane/tls/tls.key
{{- end }}
{{- else -}}
- --nats-url={{ required "nats.url is needed where nats.enabled is false" $n.url }}
- --nats-replicas={{ $n.logReplicas }}
{{- if $n.auth.secretName }}
- --nats-tls-ca=/etc/deltaplane/nats/ca.crt
{{- if $n.auth.creds }}
- --nats-creds=/etc/deltaplane/nats/nats.creds
{{- end }}
{{- if $n.auth.clientCertificate }}
- --nats-tls-cert=/etc/deltaplane/nats/tls.crt
- --nats-tls-key=/etc/deltaplane/nats/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The Secret of a NATS or Redis that exists, with its mount: lists of one or none, as JSON. */ -}}
{{- define "deltaplane.authVolumes" -}}
{{- if and (not .store.enabled) .store.auth.secretName -}}
{{ list (dict "name" .name "secret" (dict "secretName" .store.auth.secretName)) | toJson }}
{{- else -}}[]{{- end -}}
{{- end -}}
{{- define "deltaplane.authMounts" -}}
{{- if and (not .store.enabled) .store.auth.secretName -}}
{{ list (dict "name" .name "mountPath" (printf "/etc/deltaplane/%s" .name) "readOnly" true) | toJson }}
{{- else -}}[]{{- end -}}
{{- end -}}

{{- define "deltaplane.redisHosts" -}}
{{- $full := include "deltaplane.fullname" . -}}
{{- $hosts := list -}}
{{- range until (int .Values.redis.replicas) -}}
{{- $hosts = append $hosts (printf "%s-redis-%d.%s-redis" $full . $full) -}}
{{- end -}}
{{ join " " $hosts }}
{{- end -}}

{{- define "deltaplane.redisFlags" -}}
{{- $r := .Values.redis -}}
{{- if $r.enabled -}}
{{- $scheme := ternary "rediss" "redis" (eq (include "deltaplane.secure" .) "true") -}}
{{- $hosts := splitList " " (include "deltaplane.redisHosts" .) -}}
{{- if gt (int $r.replicas) 1 -}}
- --redis-url={{ $scheme }}+sentinel://{{ join ":26379," $hosts }}:26379/deltaplane
{{- else -}}
- --redis-url={{ $scheme }}://{{ first $hosts }}:6379/0
{{- end }}
{{- if include "deltaplane.secure" . }}
- --redis-tls-ca=/etc/deltaplane/tls/ca.crt
- --redis-tls-cert=/etc/deltaplane/tls/tls.crt
- --redis-tls-key=/etc/deltaplane/tls/tls.key
{{- end }}
{{- else -}}
- --redis-url={{ required "redis.url is needed where redis.enabled is false" $r.url }}
{{- with $r.username }}
- --redis-username={{ . }}
{{- end }}
{{- if $r.auth.secretName }}
{{- if $r.auth.password }}
- --redis-password-file=/etc/deltaplane/redis/password
{{- end }}
{{- if $r.auth.authority }}
- --redis-tls-ca=/etc/deltaplane/redis/ca.crt
{{- end }}
{{- if $r.auth.clientCertificate }}
- --redis-tls-cert=/etc/deltaplane/redis/tls.crt
- --redis-tls-key=/etc/deltaplane/redis/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* What no schema can say of values that belong together. */ -}}
{{- define "deltaplane.check" -}}
{{- if and .Values.gateway.enabled (eq .Values.tls.mode "none") -}}
{{- fail "gateway.enabled needs tls.mode cert-manager or secrets: clients of Kubernetes send no token without TLS" -}}
{{- end -}}
{{- if and .Values.console.enabled (eq .Values.tls.mode "none") -}}
{{- fail "console.enabled needs tls.mode cert-manager or secrets: the tokens of those who look travel through it" -}}
{{- end -}}
{{- if and .Values.admission.enabled (eq .Values.tls.mode "none") -}}
{{- fail "admission.enabled needs tls.mode cert-manager or secrets: the API server calls webhooks by TLS" -}}
{{- end -}}
{{- if and .Values.admission.enabled (not .Values.controllers.run) -}}
{{- fail "admission.enabled needs controllers.run: the webhook runs beside the controllers" -}}
{{- end -}}
{{- if and .Values.admission.enabled (eq .Values.tls.mode "secrets") (not .Values.admission.caBundle) -}}
{{- fail "admission.caBundle is needed with tls.mode secrets" -}}
{{- end -}}
{{- end -}}
