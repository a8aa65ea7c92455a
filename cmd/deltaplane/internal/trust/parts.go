package trust

import (
	"github.com/deltaplane/deltaplane/client/deltalog"
	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/services/indexer"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// part is one that others know by its name, which is that of its folder too.
type part struct {
	name string
	// hosts are the names that others find it under, none for one that serves nothing.
	hosts []string
	// groups are those of its user in the policy.
	groups []string
	// log is what it may do in NATS.
	log *stream.Permissions
	// answers: it decides what its callers may do.
	answers bool
	// calls: it calls the API server.
	calls bool
}

// The groups of the policy.
const (
	controllersGroup = "deltaplane:controllers"
	nodesGroup       = "deltaplane:nodes"
	gatewaysGroup    = "deltaplane:gateways"
	operatorsGroup   = "deltaplane:operators"
)

// parts are those of a deployment. Their hosts are the names of deploy/compose.secure.yaml and of
// services in a cluster; all have localhost too.
func parts() []part {
	writes := stream.WritePermissions("deltaplane-reflector", reflector.Buckets...)
	reads := stream.ReadPermissions("deltaplane-indexer", indexer.Buckets...)
	consumes := stream.ConsumePermissions("deltaplane-controllers", deltalog.Buckets...)
	return []part{
		{name: "nats", hosts: []string{"nats"}},
		{name: "redis", hosts: []string{"redis"}},
		{name: "devcluster", hosts: []string{"devcluster"}},
		{name: "reflector", hosts: []string{"reflector"}, log: &writes, answers: true, calls: true},
		{name: "indexer", hosts: []string{"indexer", "index"}, log: &reads, answers: true},
		{name: "queue", hosts: []string{"queue"}, answers: true},
		{name: "controllers", hosts: []string{"controllers"}, groups: []string{controllersGroup}, log: &consumes, calls: true},
		{name: "gateway", hosts: []string{"gateway"}, groups: []string{gatewaysGroup}, calls: true},
		{name: "admission", hosts: []string{"admission", "deltaplane-admission", "deltaplane-admission.deltaplane.svc"}},
		{name: "console", hosts: []string{"console"}},
		{name: "node", hosts: []string{"node"}, groups: []string{nodesGroup}, calls: true},
		{name: "admin", groups: []string{operatorsGroup}, calls: true},
	}
}

// subject is whose certificate a part shows.
func (p part) subject(more []string) certs.Subject {
	s := certs.Subject{User: "deltaplane:" + p.name, Groups: p.groups}
	if len(p.hosts) > 0 {
		s.Hosts = append(append(append(s.Hosts, p.hosts...), "localhost", "127.0.0.1", "::1"), more...)
	}
	return s
}

// policy is what the parts may do, and the operator.
const policy = `# What the parts of Deltaplane may do, and the operator: see docs/access.md. Add roles of your own callers in the same words.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: deltaplane-read-everything}
rules:
  - apiGroups: ["*"]
    resources: ["*"]
    verbs: [get, list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: deltaplane-worker}
rules:
  - apiGroups: [deltaplane.io]
    resources: [queues]
    verbs: [add, work, get, administer]
  - apiGroups: [deltaplane.io]
    resources: [backoffs]
    verbs: [get, update]
  - apiGroups: [deltaplane.io]
    resources: [indexes]
    resourceNames: [pods.v1] # podgc declares one of phases
    verbs: [create]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: deltaplane-operator}
rules:
  - apiGroups: [deltaplane.io]
    resources: [queues, backoffs, reflections, indexes]
    verbs: ["*"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: deltaplane-readers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: deltaplane-read-everything}
subjects:
  - {kind: Group, apiGroup: rbac.authorization.k8s.io, name: "deltaplane:controllers"}
  - {kind: Group, apiGroup: rbac.authorization.k8s.io, name: "deltaplane:nodes"}
  - {kind: Group, apiGroup: rbac.authorization.k8s.io, name: "deltaplane:gateways"}
  - {kind: Group, apiGroup: rbac.authorization.k8s.io, name: "deltaplane:operators"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: deltaplane-workers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: deltaplane-worker}
subjects:
  - {kind: Group, apiGroup: rbac.authorization.k8s.io, name: "deltaplane:controllers"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: deltaplane-operators}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: deltaplane-operator}
subjects:
  - {kind: Group, apiGroup: rbac.authorization.k8s.io, name: "deltaplane:operators"}
`
