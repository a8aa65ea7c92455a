package kinds

import (
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/deltaplane/deltaplane/core/taint"
)

// CRDID is the table of CustomResourceDefinitions.
const CRDID = "customresourcedefinitions.apiextensions.k8s.io"

// on adapts a function over one type to the registry.
func on[P APIObject](f func(P)) func(APIObject) {
	return func(o APIObject) { f(o.(P)) }
}

func onPair[P APIObject](f func(dst, src P)) func(APIObject, APIObject) {
	return func(dst, src APIObject) { f(dst.(P), src.(P)) }
}

func check[P APIObject](f func(P) field.ErrorList) func(APIObject) field.ErrorList {
	return func(o APIObject) field.ErrorList { return f(o.(P)) }
}

func checkPair[P APIObject](f func(obj, old P) field.ErrorList) func(APIObject, APIObject) field.ErrorList {
	return func(obj, old APIObject) field.ErrorList { return f(obj.(P), old.(P)) }
}

func selectBy[P APIObject](f func(P) map[string]string) func(APIObject) map[string]string {
	return func(o APIObject) map[string]string { return f(o.(P)) }
}

// Builtins are the kinds served without a CRD; pods are admitted with the default tolerations.
func Builtins(defaults taint.Defaults) []*Resource {
	return []*Resource{
		podResource(defaults), nodeResource(), namespaceResource(), eventResource(), jobResource(), leaseResource(),
		configMapResource(), secretResource(), serviceAccountResource(), serviceResource(), crdResource(),
	}
}

// podResource is pods, admitted with the default tolerations.
func podResource(defaults taint.Defaults) *Resource {
	return &Resource{
		Version: "v1", Plural: "pods", Singular: "pod", Kind: "Pod", ShortNames: []string{"po"}, Categories: []string{"all"},
		Namespaced: true, HasStatus: true, HasGeneration: true, ReturnsDeleted: true,
		Subresources: []string{"binding", "eviction", "log"},
		New:          func() APIObject { return &corev1.Pod{} },
		NameFormat:   validation.NameIsDNSSubdomain,
		fieldNames: []string{
			"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
			"spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
		},
		Fields: selectBy(func(p *corev1.Pod) map[string]string {
			return map[string]string{
				"spec.nodeName": p.Spec.NodeName, "spec.restartPolicy": string(p.Spec.RestartPolicy),
				"spec.schedulerName": p.Spec.SchedulerName, "spec.serviceAccountName": p.Spec.ServiceAccountName,
				"spec.hostNetwork": strconv.FormatBool(p.Spec.HostNetwork), "status.phase": string(p.Status.Phase),
				"status.podIP": p.Status.PodIP, "status.nominatedNodeName": p.Status.NominatedNodeName,
			}
		}),
		SetDefaults: on(func(p *corev1.Pod) { defaultPodSpec(&p.Spec) }),
		PrepareCreate: on(func(p *corev1.Pod) {
			preparePod(p)
			tolerate(p, defaults)
		}),
		PrepareUpdate:  onPair(func(p, _ *corev1.Pod) { tolerate(p, defaults) }),
		Validate:       check(validatePod),
		ValidateUpdate: checkPair(validatePodUpdate),
		CopyStatus:     onPair(func(dst, src *corev1.Pod) { dst.Status = src.Status }),
		CopySpec:       onPair(func(dst, src *corev1.Pod) { dst.Spec = src.Spec }),
		// Old kubelets corrupt the owners, so the API does not take them from a status.
		PrepareStatus: onPair(func(p, old *corev1.Pod) { p.OwnerReferences = old.OwnerReferences }),
		Columns:       podColumns(),
	}
}

func nodeResource() *Resource {
	return &Resource{
		Version: "v1", Plural: "nodes", Singular: "node", Kind: "Node", ShortNames: []string{"no"},
		HasStatus:  true,
		New:        func() APIObject { return &corev1.Node{} },
		NameFormat: validation.NameIsDNSSubdomain,
		fieldNames: []string{"spec.unschedulable"},
		Fields: selectBy(func(n *corev1.Node) map[string]string {
			return map[string]string{"spec.unschedulable": strconv.FormatBool(n.Spec.Unschedulable)}
		}),
		CopyStatus: onPair(func(dst, src *corev1.Node) { dst.Status = src.Status }),
		CopySpec:   onPair(func(dst, src *corev1.Node) { dst.Spec = src.Spec }),
		Columns:    nodeColumns(),
	}
}

func namespaceResource() *Resource {
	return &Resource{
		Version: "v1", Plural: "namespaces", Singular: "namespace", Kind: "Namespace", ShortNames: []string{"ns"},
		HasStatus: true, ReturnsDeleted: true, Subresources: []string{"finalize"},
		New:        func() APIObject { return &corev1.Namespace{} },
		NameFormat: validation.ValidateNamespaceName,
		fieldNames: []string{"status.phase", "name"},
		Fields: selectBy(func(n *corev1.Namespace) map[string]string {
			return map[string]string{"status.phase": string(n.Status.Phase), "name": n.Name}
		}),
		SetDefaults: on(func(n *corev1.Namespace) {
			if n.Name != "" && n.Labels[corev1.LabelMetadataName] != n.Name {
				if n.Labels == nil {
					n.Labels = map[string]string{}
				}
				n.Labels[corev1.LabelMetadataName] = n.Name
			}
		}),
		PrepareCreate: on(func(n *corev1.Namespace) {
			n.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
			if !slices.Contains(n.Spec.Finalizers, corev1.FinalizerKubernetes) {
				n.Spec.Finalizers = append(n.Spec.Finalizers, corev1.FinalizerKubernetes)
			}
		}),
		PrepareUpdate: onPair(func(n, old *corev1.Namespace) { n.Spec.Finalizers = old.Spec.Finalizers }),
		CopyStatus:    onPair(func(dst, src *corev1.Namespace) { dst.Status = src.Status }),
		CopySpec:      onPair(func(dst, src *corev1.Namespace) { dst.Spec = src.Spec }),
		Columns:       namespaceColumns(),
	}
}

func eventResource() *Resource {
	return &Resource{
		Version: "v1", Plural: "events", Singular: "event", Kind: "Event", ShortNames: []string{"ev"},
		Namespaced: true, CreateOnUpdate: true,
		New:        func() APIObject { return &corev1.Event{} },
		NameFormat: validation.NameIsDNSSubdomain,
		fieldNames: []string{
			"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
			"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type",
		},
		Fields: selectBy(func(e *corev1.Event) map[string]string {
			source := e.Source.Component
			if source == "" {
				source = e.ReportingController
			}
			return map[string]string{
				"involvedObject.kind": e.InvolvedObject.Kind, "involvedObject.namespace": e.InvolvedObject.Namespace,
				"involvedObject.name": e.InvolvedObject.Name, "involvedObject.uid": string(e.InvolvedObject.UID),
				"involvedObject.apiVersion": e.InvolvedObject.APIVersion, "involvedObject.resourceVersion": e.InvolvedObject.ResourceVersion,
				"involvedObject.fieldPath": e.InvolvedObject.FieldPath, "reason": e.Reason,
				"reportingComponent": e.ReportingController, "source": source, "type": e.Type,
			}
		}),
		Validate: check(func(e *corev1.Event) field.ErrorList {
			want := e.InvolvedObject.Namespace
			if want == e.Namespace || (want == "" && e.Namespace == "default") {
				return nil
			}
			return field.ErrorList{field.Invalid(field.NewPath("involvedObject", "namespace"), want, "does not match event.namespace")}
		}),
		Columns: eventColumns(),
	}
}

func jobResource() *Resource {
	return &Resource{
		Group: "batch", Version: "v1", Plural: "jobs", Singular: "job", Kind: "Job", Categories: []string{"all"},
		Namespaced: true, HasStatus: true, HasGeneration: true, OrphansByDefault: true,
		New:        func() APIObject { return &batchv1.Job{} },
		NameFormat: validation.NameIsDNSSubdomain,
		fieldNames: []string{"status.successful"},
		Fields: selectBy(func(j *batchv1.Job) map[string]string {
			return map[string]string{"status.successful": strconv.Itoa(int(j.Status.Succeeded))}
		}),
		SetDefaults:          on(defaultJob),
		PrepareCreate:        on(prepareJob),
		Validate:             check(validateJob),
		ValidateUpdate:       checkPair(validateJobUpdate),
		ValidateStatusUpdate: checkPair(validateJobStatusUpdate),
		CopyStatus:           onPair(func(dst, src *batchv1.Job) { dst.Status = src.Status }),
		CopySpec:             onPair(func(dst, src *batchv1.Job) { dst.Spec = src.Spec }),
		Columns:              jobColumns(),
	}
}

func leaseResource() *Resource {
	return &Resource{
		Group: "coordination.k8s.io", Version: "v1", Plural: "leases", Singular: "lease", Kind: "Lease",
		Namespaced: true, CreateOnUpdate: true, NeedsVersion: true,
		New:        func() APIObject { return &coordinationv1.Lease{} },
		NameFormat: validation.NameIsDNSSubdomain,
		Validate: check(func(l *coordinationv1.Lease) field.ErrorList {
			var errs field.ErrorList
			path := field.NewPath("spec")
			if d := l.Spec.LeaseDurationSeconds; d != nil && *d <= 0 {
				errs = append(errs, field.Invalid(path.Child("leaseDurationSeconds"), *d, "must be greater than 0"))
			}
			if n := l.Spec.LeaseTransitions; n != nil && *n < 0 {
				errs = append(errs, field.Invalid(path.Child("leaseTransitions"), *n, "must be greater than or equal to 0"))
			}
			return errs
		}),
		Columns: leaseColumns(),
	}
}

func configMapResource() *Resource {
	return &Resource{
		Version: "v1", Plural: "configmaps", Singular: "configmap", Kind: "ConfigMap", ShortNames: []string{"cm"}, Namespaced: true,
		New:        func() APIObject { return &corev1.ConfigMap{} },
		NameFormat: validation.NameIsDNSSubdomain,
		Validate: check(func(c *corev1.ConfigMap) field.ErrorList {
			size := 0
			for _, v := range c.Data {
				size += len(v)
			}
			for _, v := range c.BinaryData {
				size += len(v)
			}
			return tooLong(field.NewPath(""), size)
		}),
		ValidateUpdate: checkPair(func(c, old *corev1.ConfigMap) field.ErrorList {
			if old.Immutable != nil && *old.Immutable && !equality.Semantic.DeepEqual(c.Data, old.Data) {
				return field.ErrorList{field.Forbidden(field.NewPath("data"), "field is immutable when `immutable` is set")}
			}
			return nil
		}),
		Columns: []Column{NameColumn, col("Data", "string", 0, func(c *corev1.ConfigMap) any { return len(c.Data) + len(c.BinaryData) }), AgeColumn},
	}
}

func secretResource() *Resource {
	return &Resource{
		Version: "v1", Plural: "secrets", Singular: "secret", Kind: "Secret", Namespaced: true,
		New:        func() APIObject { return &corev1.Secret{} },
		NameFormat: validation.NameIsDNSSubdomain,
		fieldNames: []string{"type"},
		Fields:     selectBy(func(s *corev1.Secret) map[string]string { return map[string]string{"type": string(s.Type)} }),
		SetDefaults: on(func(s *corev1.Secret) {
			if s.Type == "" {
				s.Type = corev1.SecretTypeOpaque
			}
		}),
		PrepareCreate: on(func(s *corev1.Secret) {
			for k, v := range s.StringData {
				if s.Data == nil {
					s.Data = map[string][]byte{}
				}
				s.Data[k] = []byte(v)
			}
			s.StringData = nil
		}),
		PrepareUpdate: onPair(func(s, _ *corev1.Secret) {
			for k, v := range s.StringData {
				if s.Data == nil {
					s.Data = map[string][]byte{}
				}
				s.Data[k] = []byte(v)
			}
			s.StringData = nil
		}),
		Validate: check(func(s *corev1.Secret) field.ErrorList {
			size := 0
			for _, v := range s.Data {
				size += len(v)
			}
			return tooLong(field.NewPath("data"), size)
		}),
		Columns: []Column{
			NameColumn, col("Type", "string", 0, func(s *corev1.Secret) any { return string(s.Type) }),
			col("Data", "string", 0, func(s *corev1.Secret) any { return len(s.Data) }), AgeColumn,
		},
	}
}

// tooLong refuses more data than a config map or secret may hold.
func tooLong(path *field.Path, size int) field.ErrorList {
	if size <= corev1.MaxSecretSize {
		return nil
	}
	return field.ErrorList{field.TooLong(path, "", corev1.MaxSecretSize)}
}

func serviceAccountResource() *Resource {
	return &Resource{
		Version: "v1", Plural: "serviceaccounts", Singular: "serviceaccount", Kind: "ServiceAccount", ShortNames: []string{"sa"},
		Namespaced: true, ReturnsDeleted: true, Subresources: []string{"token"},
		New:        func() APIObject { return &corev1.ServiceAccount{} },
		NameFormat: validation.ValidateServiceAccountName,
		Columns:    []Column{NameColumn, col("Secrets", "string", 0, func(s *corev1.ServiceAccount) any { return len(s.Secrets) }), AgeColumn},
	}
}

func serviceResource() *Resource {
	return &Resource{
		Version: "v1", Plural: "services", Singular: "service", Kind: "Service", ShortNames: []string{"svc"}, Categories: []string{"all"},
		Namespaced: true, HasStatus: true, ReturnsDeleted: true,
		New:        func() APIObject { return &corev1.Service{} },
		NameFormat: validation.NameIsDNS1035Label,
		fieldNames: []string{"spec.clusterIP", "spec.type"},
		Fields: selectBy(func(s *corev1.Service) map[string]string {
			return map[string]string{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
		}),
		SetDefaults: on(defaultService),
		PrepareUpdate: onPair(func(s, old *corev1.Service) {
			if s.Spec.ClusterIP == "" {
				s.Spec.ClusterIP, s.Spec.ClusterIPs = old.Spec.ClusterIP, old.Spec.ClusterIPs
			}
		}),
		PrepareCreate: on(func(s *corev1.Service) { s.Status = corev1.ServiceStatus{} }),
		Validate: check(func(s *corev1.Service) field.ErrorList {
			if len(s.Spec.Ports) == 0 && s.Spec.ClusterIP != corev1.ClusterIPNone && s.Spec.Type != corev1.ServiceTypeExternalName {
				return field.ErrorList{field.Required(field.NewPath("spec", "ports"), "")}
			}
			return nil
		}),
		CopyStatus: onPair(func(dst, src *corev1.Service) { dst.Status = src.Status }),
		CopySpec:   onPair(func(dst, src *corev1.Service) { dst.Spec = src.Spec }),
		Columns:    serviceColumns(),
	}
}

func defaultService(s *corev1.Service) {
	if s.Spec.Type == "" {
		s.Spec.Type = corev1.ServiceTypeClusterIP
	}
	if s.Spec.SessionAffinity == "" {
		s.Spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		if p.TargetPort.IntVal == 0 && p.TargetPort.StrVal == "" {
			p.TargetPort.IntVal = p.Port
		}
	}
}
