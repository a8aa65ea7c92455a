{{- define "deltaplane.natsConf" -}}
{{- $full := include "deltaplane.fullname" . -}}
listen: 0.0.0.0:4222
http: 0.0.0.0:8222
server_name: $POD_NAME

# A Kubernetes object can be 1.5 MB in etcd and grows in JSON; the log keeps one object per message.
max_payload: 8MB
max_pending: 64MB

jetstream {
  store_dir: /data
  max_memory_store: 64MB
  max_file_store: {{ .Values.nats.maxFileStore }}
  # What is acknowledged reaches the disk at most this much later. The log is derived data: a writer that finds it
  # rolled back starts a new epoch and lists again.
  sync_interval: 10s
}
{{- if include "deltaplane.secure" . }}

tls {
  cert_file: /etc/nats-tls/tls.crt
  key_file: /etc/nats-tls/tls.key
  ca_file: /etc/nats-tls/ca.crt
  verify: true
}
{{- end }}
{{- if gt (int .Values.nats.replicas) 1 }}

cluster {
  name: {{ $full }}
  listen: 0.0.0.0:6222
  no_advertise: true
  routes: [
    {{- range until (int .Values.nats.replicas) }}
    nats://{{ $full }}-nats-{{ . }}.{{ $full }}-nats:6222
    {{- end }}
  ]
  {{- if include "deltaplane.secure" . }}
  tls {
    cert_file: /etc/nats-tls/tls.crt
    key_file: /etc/nats-tls/tls.key
    ca_file: /etc/nats-tls/ca.crt
    verify: true
  }
  {{- end }}
}
{{- end }}
{{- end -}}
