{{- /* What each controller does in its cluster; test/system proves that it is exactly this. */ -}}
{{- define "deltaplane.rules.job" -}}
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, delete]
- apiGroups: [batch]
  resources: [jobs/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}

{{- define "deltaplane.rules.nodelifecycle" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, patch]
- apiGroups: [""]
  resources: [nodes/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}
{{- define "deltaplane.rules.nodelifecycle.leases" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get]
{{- end -}}

{{- define "deltaplane.rules.tainteviction" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, delete]
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [nodes]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}

{{- define "deltaplane.rules.podgc" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, delete]
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [nodes]
  verbs: [get]
{{- end -}}
