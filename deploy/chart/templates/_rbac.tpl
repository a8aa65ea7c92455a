{{- /*
A ClusterRole with its binding to a part's ServiceAccount: (dict "root" $ "part" "queue" "name" "queue-x" "rules" TEXT). The rules are
YAML; without any there is neither.
*/ -}}
{{- define "deltaplane.clusterRole" -}}
{{- if and .root.Values.rbac.create (trim .rules) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ include "deltaplane.fullname" .root }}-{{ .name }}
  labels: {{- include "deltaplane.labels" . | nindent 4 }}
rules: {{- trim .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "deltaplane.fullname" .root }}-{{ .name }}
  labels: {{- include "deltaplane.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "deltaplane.fullname" .root }}-{{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "deltaplane.fullname" .root }}-{{ .part }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}
{{- end -}}

{{- /* The same in one namespace: (dict ... "namespace" "kube-node-lease"). */ -}}
{{- define "deltaplane.role" -}}
{{- if and .root.Values.rbac.create (trim .rules) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "deltaplane.fullname" .root }}-{{ .name }}
  namespace: {{ .namespace }}
  labels: {{- include "deltaplane.labels" . | nindent 4 }}
rules: {{- trim .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "deltaplane.fullname" .root }}-{{ .name }}
  namespace: {{ .namespace }}
  labels: {{- include "deltaplane.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "deltaplane.fullname" .root }}-{{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "deltaplane.fullname" .root }}-{{ .part }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}
{{- end -}}

{{- /* What a server asks a cluster about its callers. */ -}}
{{- define "deltaplane.authorityRules" -}}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, clusterroles, rolebindings, clusterrolebindings]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [list, watch]
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end -}}

{{- /*
What is mirrored, as JSON: a list of {group, resource, namespace}; the namespace is "" for the cluster. An item of the values is
resource[.version][.group][/namespace[+namespace...]] or a map with resource, namespace or namespaces.
*/ -}}
{{- define "deltaplane.mirrored" -}}
{{- $out := list -}}
{{- range .Values.reflector.mirror -}}
{{- $text := . -}}
{{- $namespace := "" -}}
{{- if kindIs "map" . -}}
{{- $text = .resource -}}
{{- $namespace = .namespace | default "" -}}
{{- if .namespaces -}}{{- $namespace = join "+" .namespaces -}}{{- end -}}
{{- else if contains "/" . -}}
{{- $text = first (splitList "/" .) -}}
{{- $namespace = last (splitList "/" .) -}}
{{- end -}}
{{- $words := splitList "." $text -}}
{{- $group := rest $words -}}
{{- if and $group (regexMatch "^v[0-9]+((alpha|beta)[0-9]+)?$" (first $group)) -}}
{{- $group = rest $group -}}
{{- end -}}
{{- $group = join "." $group -}}
{{- if eq $text "*" -}}{{- $group = "*" -}}{{- end -}}
{{- if contains "+" $namespace -}}{{- $namespace = "" -}}{{- end -}}
{{- $out = append $out (dict "group" $group "resource" (first $words) "namespace" $namespace) -}}
{{- end -}}
{{ $out | toJson }}
{{- end -}}
