{{- /* The beginning of all names. */ -}}
{{- define "deltaplane.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* Labels of a part: (dict "root" $ "part" "queue"). */ -}}
{{- define "deltaplane.selector" -}}
app.kubernetes.io/name: deltaplane
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "deltaplane.labels" -}}
{{ include "deltaplane.selector" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{- /* Name and labels of a namespaced object of a part. */ -}}
{{- define "deltaplane.metadata" -}}
name: {{ include "deltaplane.fullname" .root }}-{{ .part }}
namespace: {{ .root.Release.Namespace }}
labels: {{- include "deltaplane.labels" . | nindent 2 }}
{{- end -}}

{{- define "deltaplane.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "deltaplane.secure" -}}
{{- if ne .Values.tls.mode "none" }}true{{ end -}}
{{- end -}}

{{- define "deltaplane.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "deltaplane.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: {{ .group }}
fsGroup: {{ .group }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* Where a part's pods run: (dict "root" $ "part" "queue"). */ -}}
{{- define "deltaplane.placement" -}}
{{- $v := index .root.Values .part -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $v.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $v.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $v.affinity }}
affinity: {{- toYaml $v.affinity | nindent 2 }}
{{- else if eq $v.antiAffinity "required" }}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "deltaplane.selector" . | nindent 12 }}
{{- else if eq $v.antiAffinity "preferred" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "deltaplane.selector" . | nindent 14 }}
{{- end }}
{{- end -}}

{{- define "deltaplane.podMetadata" -}}
{{- $v := index .root.Values .part -}}
labels: {{- include "deltaplane.labels" . | nindent 2 }}
  {{- with $v.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
{{- $annotations := merge (dict) $v.podAnnotations (.annotations | default dict) }}
{{- with $annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /*
The pod of one of our services: (dict "root" $ "part" "queue" "args" LIST "ports" LIST "adminPort" 7452 "api" BOOL "volumes" LIST "mounts" LIST).
The API server's token is mounted where api is true. Links of services would be variables that begin with DELTAPLANE_, as settings do.
*/ -}}
{{- define "deltaplane.pod" -}}
{{- $v := index .root.Values .part -}}
{{- $secure := include "deltaplane.secure" .root -}}
{{- $volumes := .volumes | default list -}}
{{- $mounts := .mounts | default list -}}
{{- if $secure -}}
{{- $volumes = append $volumes (dict "name" "tls" "secret" (dict "secretName" (include "deltaplane.tlsSecret" .))) -}}
{{- $mounts = append $mounts (dict "name" "tls" "mountPath" "/etc/deltaplane/tls" "readOnly" true) -}}
{{- end -}}
{{- $volumes = concat $volumes $v.extraVolumes -}}
{{- $mounts = concat $mounts $v.extraVolumeMounts -}}
{{- $scheme := ternary "HTTPS" "HTTP" (eq $secure "true") -}}
metadata: {{- include "deltaplane.podMetadata" . | nindent 2 }}
spec:
  serviceAccountName: {{ if .root.Values.rbac.create }}{{ include "deltaplane.fullname" .root }}-{{ .part }}{{ else }}default{{ end }}
  automountServiceAccountToken: {{ .api }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: 40
  securityContext: {{- include "deltaplane.podSecurity" (dict "user" 65532 "group" 65532) | nindent 4 }}
  {{- include "deltaplane.placement" . | trim | nindent 2 }}
  containers:
    - name: {{ .part }}
      image: {{ include "deltaplane.image" .root }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args:
        {{- range concat .args $v.extraArgs }}
        - {{ . | quote }}
        {{- end }}
      ports:
        {{- range .ports }}
        - name: {{ .name }}
          containerPort: {{ .port }}
        {{- end }}
        - name: admin
          containerPort: {{ .adminPort }}
      # A part waits for NATS and the like before it answers.
      startupProbe:
        httpGet: {path: /healthz, port: admin, scheme: {{ $scheme }}}
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /healthz, port: admin, scheme: {{ $scheme }}}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: admin, scheme: {{ $scheme }}}
        periodSeconds: 3
        timeoutSeconds: 3
      resources: {{- toYaml $v.resources | nindent 8 }}
      securityContext: {{- include "deltaplane.containerSecurity" .root | nindent 8 }}
      {{- with $mounts }}
      volumeMounts: {{- toYaml . | nindent 8 }}
      {{- end }}
  {{- with $volumes }}
  volumes: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- /* A disruption budget, where there is more than one. */ -}}
{{- define "deltaplane.budget" -}}
{{- if gt (int (index .root.Values .part).replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{- include "deltaplane.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "deltaplane.selector" . | nindent 6 }}
{{- end }}
{{- end -}}

{{- define "deltaplane.account" -}}
{{- if .root.Values.rbac.create }}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{- include "deltaplane.metadata" . | nindent 2 }}
automountServiceAccountToken: false
{{- end }}
{{- end -}}

{{- /* A claim for /data, or an empty folder: (dict "root" $ "persistence" VALUES "part" "nats"). */ -}}
{{- define "deltaplane.claims" -}}
{{- if .persistence.enabled }}
volumeClaimTemplates:
  - metadata:
      name: data
      labels: {{- include "deltaplane.selector" . | nindent 8 }}
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .persistence.storageClassName }}
      storageClassName: {{ . }}
      {{- end }}
      resources:
        requests:
          storage: {{ .persistence.size }}
{{- end }}
{{- end -}}
