{{- /* Which resources other servers answer, and how custom resources are printed. */ -}}
{{- define "deltaplane.rules.gateway" -}}
- apiGroups: [apiregistration.k8s.io]
  resources: [apiservices]
  verbs: [get]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get]
{{- end -}}

{{- /* The authorities whose client certificates count. */ -}}
{{- define "deltaplane.rules.gateway.authorities" -}}
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [extension-apiserver-authentication]
  verbs: [get]
{{- end -}}

{{- /* Who has it may do everything in the cluster, as anybody: name users and groups by resourceNames where they are known. */ -}}
{{- define "deltaplane.rules.gateway.impersonator" -}}
- apiGroups: [""]
  resources: [users, groups, serviceaccounts]
  verbs: [impersonate]
- apiGroups: [authentication.k8s.io]
  resources: ["userextras/*", uids]
  verbs: [impersonate]
{{- end -}}
