package devcluster

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

// crdID is the table of CustomResourceDefinitions.
const crdID = "customresourcedefinitions.apiextensions.k8s.io"

// on adapts a function over one type to the registry.
func on[P apiObject](f func(P)) func(apiObject) {
	return func(o apiObject) { f(o.(P)) }
}

func onPair[P apiObject](f func(dst, src P)) func(apiObject, apiObject) {
	return func(dst, src apiObject) { f(dst.(P), src.(P)) }
}

func check[P apiObject](f func(P) field.ErrorList) func(apiObject) field.ErrorList {
	return func(o apiObject) field.ErrorList { return f(o.(P)) }
}

func checkPair[P apiObject](f func(obj, old P) field.ErrorList) func(apiObject, apiObject) field.ErrorList {
	return func(obj, old apiObject) field.ErrorList { return f(obj.(P), old.(P)) }
}

func selectBy[P apiObject](f func(P) map[string]string) func(apiObject) map[string]string {
	return func(o apiObject) map[string]string { return f(o.(P)) }
}

func builtins(defaults taint.Defaults) []*resource {
	return []*resource{
		podResource(defaults), nodeResource(), namespaceResource(), eventResource(), jobResource(), leaseResource(),
		configMapResource(), secretResource(), serviceAccountResource(), serviceResource(), crdResource(),
	}
}

// podResource is pods, admitted with the default tolerations.
func podResource(defaults taint.Defaults) *resource {
	return &resource{
		version: "v1", plural: "pods", singular: "pod", kind: "Pod", shortNames: []string{"po"}, categories: []string{"all"},
		namespaced: true, hasStatus: true, hasGeneration: true, returnsDeleted: true,
		subresources: []string{"binding", "eviction", "log"},
		make:         func() apiObject { return &corev1.Pod{} },
		nameFormat:   validation.NameIsDNSSubdomain,
		fieldNames: []string{
			"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
			"spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
		},
		fields: selectBy(func(p *corev1.Pod) map[string]string {
			return map[string]string{
				"spec.nodeName": p.Spec.NodeName, "spec.restartPolicy": string(p.Spec.RestartPolicy),
				"spec.schedulerName": p.Spec.SchedulerName, "spec.serviceAccountName": p.Spec.ServiceAccountName,
				"spec.hostNetwork": strconv.FormatBool(p.Spec.HostNetwork), "status.phase": string(p.Status.Phase),
				"status.podIP": p.Status.PodIP, "status.nominatedNodeName": p.Status.NominatedNodeName,
			}
		}),
		setDefaults: on(func(p *corev1.Pod) { defaultPodSpec(&p.Spec) }),
		prepareCreate: on(func(p *corev1.Pod) {
			preparePod(p)
			tolerate(p, defaults)
		}),
		prepareUpdate:  onPair(func(p, _ *corev1.Pod) { tolerate(p, defaults) }),
		validate:       check(validatePod),
		validateUpdate: checkPair(validatePodUpdate),
		copyStatus:     onPair(func(dst, src *corev1.Pod) { dst.Status = src.Status }),
		copySpec:       onPair(func(dst, src *corev1.Pod) { dst.Spec = src.Spec }),
		// Old kubelets corrupt the owners, so the API does not take them from a status.
		prepareStatus: onPair(func(p, old *corev1.Pod) { p.OwnerReferences = old.OwnerReferences }),
		columns:       podColumns(),
	}
}

func nodeResource() *resource {
	return &resource{
		version: "v1", plural: "nodes", singular: "node", kind: "Node", shortNames: []string{"no"},
		hasStatus:  true,
		make:       func() apiObject { return &corev1.Node{} },
		nameFormat: validation.NameIsDNSSubdomain,
		fieldNames: []string{"spec.unschedulable"},
		fields: selectBy(func(n *corev1.Node) map[string]string {
			return map[string]string{"spec.unschedulable": strconv.FormatBool(n.Spec.Unschedulable)}
		}),
		copyStatus: onPair(func(dst, src *corev1.Node) { dst.Status = src.Status }),
		copySpec:   onPair(func(dst, src *corev1.Node) { dst.Spec = src.Spec }),
		columns:    nodeColumns(),
	}
}

func namespaceResource() *resource {
	return &resource{
		version: "v1", plural: "namespaces", singular: "namespace", kind: "Namespace", shortNames: []string{"ns"},
		hasStatus: true, returnsDeleted: true, subresources: []string{"finalize"},
		make:       func() apiObject { return &corev1.Namespace{} },
		nameFormat: validation.ValidateNamespaceName,
		fieldNames: []string{"status.phase", "name"},
		fields: selectBy(func(n *corev1.Namespace) map[string]string {
			return map[string]string{"status.phase": string(n.Status.Phase), "name": n.Name}
		}),
		setDefaults: on(func(n *corev1.Namespace) {
			if n.Name != "" && n.Labels[corev1.LabelMetadataName] != n.Name {
				if n.Labels == nil {
					n.Labels = map[string]string{}
				}
				n.Labels[corev1.LabelMetadataName] = n.Name
			}
		}),
		prepareCreate: on(func(n *corev1.Namespace) {
			n.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
			if !slices.Contains(n.Spec.Finalizers, corev1.FinalizerKubernetes) {
				n.Spec.Finalizers = append(n.Spec.Finalizers, corev1.FinalizerKubernetes)
			}
		}),
		prepareUpdate: onPair(func(n, old *corev1.Namespace) { n.Spec.Finalizers = old.Spec.Finalizers }),
		copyStatus:    onPair(func(dst, src *corev1.Namespace) { dst.Status = src.Status }),
		copySpec:      onPair(func(dst, src *corev1.Namespace) { dst.Spec = src.Spec }),
		columns:       namespaceColumns(),
	}
}

func eventResource() *resource {
	return &resource{
		version: "v1", plural: "events", singular: "event", kind: "Event", shortNames: []string{"ev"},
		namespaced: true, createOnUpdate: true,
		make:       func() apiObject { return &corev1.Event{} },
		nameFormat: validation.NameIsDNSSubdomain,
		fieldNames: []string{
			"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
			"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type",
		},
		fields: selectBy(func(e *corev1.Event) map[string]string {
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
		validate: check(func(e *corev1.Event) field.ErrorList {
			want := e.InvolvedObject.Namespace
			if want == e.Namespace || (want == "" && e.Namespace == "default") {
				return nil
			}
			return field.ErrorList{field.Invalid(field.NewPath("involvedObject", "namespace"), want, "does not match event.namespace")}
		}),
		columns: eventColumns(),
	}
}

func jobResource() *resource {
	return &resource{
		group: "batch", version: "v1", plural: "jobs", singular: "job", kind: "Job", categories: []string{"all"},
		namespaced: true, hasStatus: true, hasGeneration: true, orphansByDefault: true,
		make:       func() apiObject { return &batchv1.Job{} },
		nameFormat: validation.NameIsDNSSubdomain,
		fieldNames: []string{"status.successful"},
		fields: selectBy(func(j *batchv1.Job) map[string]string {
			return map[string]string{"status.successful": strconv.Itoa(int(j.Status.Succeeded))}
		}),
		setDefaults:          on(defaultJob),
		prepareCreate:        on(prepareJob),
		validate:             check(validateJob),
		validateUpdate:       checkPair(validateJobUpdate),
		validateStatusUpdate: checkPair(validateJobStatusUpdate),
		copyStatus:           onPair(func(dst, src *batchv1.Job) { dst.Status = src.Status }),
		copySpec:             onPair(func(dst, src *batchv1.Job) { dst.Spec = src.Spec }),
		columns:              jobColumns(),
	}
}

func leaseResource() *resource {
	return &resource{
		group: "coordination.k8s.io", version: "v1", plural: "leases", singular: "lease", kind: "Lease",
		namespaced: true, createOnUpdate: true, needsVersion: true,
		make:       func() apiObject { return &coordinationv1.Lease{} },
		nameFormat: validation.NameIsDNSSubdomain,
		validate: check(func(l *coordinationv1.Lease) field.ErrorList {
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
		columns: leaseColumns(),
	}
}

func configMapResource() *resource {
	return &resource{
		version: "v1", plural: "configmaps", singular: "configmap", kind: "ConfigMap", shortNames: []string{"cm"}, namespaced: true,
		make:       func() apiObject { return &corev1.ConfigMap{} },
		nameFormat: validation.NameIsDNSSubdomain,
		validate: check(func(c *corev1.ConfigMap) field.ErrorList {
			size := 0
			for _, v := range c.Data {
				size += len(v)
			}
			for _, v := range c.BinaryData {
				size += len(v)
			}
			return tooLong(field.NewPath(""), size)
		}),
		validateUpdate: checkPair(func(c, old *corev1.ConfigMap) field.ErrorList {
			if old.Immutable != nil && *old.Immutable && !equality.Semantic.DeepEqual(c.Data, old.Data) {
				return field.ErrorList{field.Forbidden(field.NewPath("data"), "field is immutable when `immutable` is set")}
			}
			return nil
		}),
		columns: []column{nameColumn, col("Data", "string", 0, func(c *corev1.ConfigMap) any { return len(c.Data) + len(c.BinaryData) }), ageColumn},
	}
}

func secretResource() *resource {
	return &resource{
		version: "v1", plural: "secrets", singular: "secret", kind: "Secret", namespaced: true,
		make:       func() apiObject { return &corev1.Secret{} },
		nameFormat: validation.NameIsDNSSubdomain,
		fieldNames: []string{"type"},
		fields:     selectBy(func(s *corev1.Secret) map[string]string { return map[string]string{"type": string(s.Type)} }),
		setDefaults: on(func(s *corev1.Secret) {
			if s.Type == "" {
				s.Type = corev1.SecretTypeOpaque
			}
		}),
		prepareCreate: on(func(s *corev1.Secret) {
			for k, v := range s.StringData {
				if s.Data == nil {
					s.Data = map[string][]byte{}
				}
				s.Data[k] = []byte(v)
			}
			s.StringData = nil
		}),
		prepareUpdate: onPair(func(s, _ *corev1.Secret) {
			for k, v := range s.StringData {
				if s.Data == nil {
					s.Data = map[string][]byte{}
				}
				s.Data[k] = []byte(v)
			}
			s.StringData = nil
		}),
		validate: check(func(s *corev1.Secret) field.ErrorList {
			size := 0
			for _, v := range s.Data {
				size += len(v)
			}
			return tooLong(field.NewPath("data"), size)
		}),
		columns: []column{
			nameColumn, col("Type", "string", 0, func(s *corev1.Secret) any { return string(s.Type) }),
			col("Data", "string", 0, func(s *corev1.Secret) any { return len(s.Data) }), ageColumn,
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

func serviceAccountResource() *resource {
	return &resource{
		version: "v1", plural: "serviceaccounts", singular: "serviceaccount", kind: "ServiceAccount", shortNames: []string{"sa"},
		namespaced: true, returnsDeleted: true, subresources: []string{"token"},
		make:       func() apiObject { return &corev1.ServiceAccount{} },
		nameFormat: validation.ValidateServiceAccountName,
		columns:    []column{nameColumn, col("Secrets", "string", 0, func(s *corev1.ServiceAccount) any { return len(s.Secrets) }), ageColumn},
	}
}

func serviceResource() *resource {
	return &resource{
		version: "v1", plural: "services", singular: "service", kind: "Service", shortNames: []string{"svc"}, categories: []string{"all"},
		namespaced: true, hasStatus: true, returnsDeleted: true,
		make:       func() apiObject { return &corev1.Service{} },
		nameFormat: validation.NameIsDNS1035Label,
		fieldNames: []string{"spec.clusterIP", "spec.type"},
		fields: selectBy(func(s *corev1.Service) map[string]string {
			return map[string]string{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
		}),
		setDefaults: on(defaultService),
		prepareUpdate: onPair(func(s, old *corev1.Service) {
			if s.Spec.ClusterIP == "" {
				s.Spec.ClusterIP, s.Spec.ClusterIPs = old.Spec.ClusterIP, old.Spec.ClusterIPs
			}
		}),
		prepareCreate: on(func(s *corev1.Service) { s.Status = corev1.ServiceStatus{} }),
		validate: check(func(s *corev1.Service) field.ErrorList {
			if len(s.Spec.Ports) == 0 && s.Spec.ClusterIP != corev1.ClusterIPNone && s.Spec.Type != corev1.ServiceTypeExternalName {
				return field.ErrorList{field.Required(field.NewPath("spec", "ports"), "")}
			}
			return nil
		}),
		copyStatus: onPair(func(dst, src *corev1.Service) { dst.Status = src.Status }),
		copySpec:   onPair(func(dst, src *corev1.Service) { dst.Spec = src.Spec }),
		columns:    serviceColumns(),
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
