package kinds

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/deltaplane/deltaplane/core/taint"
)

// defaultPodSpec fills what the API fills in every pod and pod template.
func defaultPodSpec(s *corev1.PodSpec) {
	if s.RestartPolicy == "" {
		s.RestartPolicy = corev1.RestartPolicyAlways
	}
	if s.DNSPolicy == "" {
		s.DNSPolicy = corev1.DNSClusterFirst
	}
	if s.TerminationGracePeriodSeconds == nil {
		s.TerminationGracePeriodSeconds = new(int64(corev1.DefaultTerminationGracePeriodSeconds))
	}
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	if s.SchedulerName == "" {
		s.SchedulerName = corev1.DefaultSchedulerName
	}
	if s.DeprecatedServiceAccount == "" {
		s.DeprecatedServiceAccount = s.ServiceAccountName
	}
	if s.ServiceAccountName == "" {
		s.ServiceAccountName = s.DeprecatedServiceAccount
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			defaultContainer(&list[i])
		}
	}
}

func defaultContainer(c *corev1.Container) {
	if c.TerminationMessagePath == "" {
		c.TerminationMessagePath = corev1.TerminationMessagePathDefault
	}
	if c.TerminationMessagePolicy == "" {
		c.TerminationMessagePolicy = corev1.TerminationMessageReadFile
	}
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = corev1.PullIfNotPresent
		name := c.Image[strings.LastIndexByte(c.Image, '/')+1:]
		if !strings.Contains(name, "@") && (!strings.Contains(name, ":") || strings.HasSuffix(name, ":latest")) {
			c.ImagePullPolicy = corev1.PullAlways
		}
	}
	for i := range c.Ports {
		if c.Ports[i].Protocol == "" {
			c.Ports[i].Protocol = corev1.ProtocolTCP
		}
	}
}

// preparePod is what the API's admission adds to a pod at its creation.
func preparePod(p *corev1.Pod) {
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: qos(&p.Spec)}
	if p.Spec.ServiceAccountName == "" {
		p.Spec.ServiceAccountName, p.Spec.DeprecatedServiceAccount = "default", "default"
	}
	if p.Spec.EnableServiceLinks == nil {
		p.Spec.EnableServiceLinks = new(corev1.DefaultEnableServiceLinks)
	}
	if p.Spec.Priority == nil {
		p.Spec.Priority = new(int32(0))
	}
	if p.Spec.PreemptionPolicy == nil {
		p.Spec.PreemptionPolicy = new(corev1.PreemptLowerPriority)
	}
}

// tolerate gives a pod the tolerations it lacks (docs/rules.md, "Taints: default tolerations").
func tolerate(p *corev1.Pod, defaults taint.Defaults) {
	have := make([]taint.Toleration, len(p.Spec.Tolerations))
	for i, t := range p.Spec.Tolerations {
		have[i] = taint.Toleration{Key: t.Key, Operator: string(t.Operator), Value: t.Value, Effect: string(t.Effect), Seconds: t.TolerationSeconds}
	}
	for _, t := range defaults.Missing(have) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
			Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Effect: corev1.TaintEffect(t.Effect), TolerationSeconds: t.Seconds,
		})
	}
}

func qos(s *corev1.PodSpec) corev1.PodQOSClass {
	asked, guaranteed := false, true
	for _, c := range s.Containers {
		asked = asked || len(c.Resources.Requests)+len(c.Resources.Limits) > 0
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			limit, ok := c.Resources.Limits[name]
			request, set := c.Resources.Requests[name]
			guaranteed = guaranteed && ok && (!set || limit.Cmp(request) == 0)
		}
	}
	switch {
	case !asked:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

func validatePod(p *corev1.Pod) field.ErrorList {
	return validatePodSpec(&p.Spec, field.NewPath("spec"))
}

func validatePodTemplate(t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	errs := field.ErrorList{}
	for k, v := range t.Labels {
		for _, msg := range validation.IsQualifiedName(k) {
			errs = append(errs, field.Invalid(path.Child("metadata", "labels"), k, msg))
		}
		for _, msg := range validation.IsValidLabelValue(v) {
			errs = append(errs, field.Invalid(path.Child("metadata", "labels"), v, msg))
		}
	}
	return append(errs, validatePodSpec(&t.Spec, path.Child("spec"))...)
}

func validatePodSpec(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.Containers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), ""))
	}
	names := map[string]bool{}
	for _, set := range []struct {
		name string
		list []corev1.Container
	}{{"containers", s.Containers}, {"initContainers", s.InitContainers}} {
		for i, c := range set.list {
			errs = append(errs, validateContainer(c, path.Child(set.name).Index(i), names)...)
		}
	}
	policies := []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure}
	switch s.RestartPolicy {
	case corev1.RestartPolicyAlways, corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure:
	default:
		errs = append(errs, field.NotSupported(path.Child("restartPolicy"), s.RestartPolicy, policies))
	}
	if g := s.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		errs = append(errs, field.Invalid(path.Child("terminationGracePeriodSeconds"), *g, "must be greater than or equal to 0"))
	}
	if d := s.ActiveDeadlineSeconds; d != nil && *d < 1 {
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *d, "must be between 1 and 2147483647, inclusive"))
	}
	if s.NodeName != "" {
		for _, msg := range validation.IsDNS1123Subdomain(s.NodeName) {
			errs = append(errs, field.Invalid(path.Child("nodeName"), s.NodeName, msg))
		}
	}
	return errs
}

func validateContainer(c corev1.Container, path *field.Path, names map[string]bool) field.ErrorList {
	var errs field.ErrorList
	switch {
	case c.Name == "":
		errs = append(errs, field.Required(path.Child("name"), ""))
	case names[c.Name]:
		errs = append(errs, field.Duplicate(path.Child("name"), c.Name))
	default:
		for _, msg := range validation.IsDNS1123Label(c.Name) {
			errs = append(errs, field.Invalid(path.Child("name"), c.Name, msg))
		}
	}
	names[c.Name] = true
	if c.Image == "" {
		errs = append(errs, field.Required(path.Child("image"), ""))
	}
	return errs
}

// validatePodUpdate allows what may change in a pod: images, deadlines, added
// tolerations, and the removal of scheduling gates.
func validatePodUpdate(p, old *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec")
	if len(p.Spec.Containers) != len(old.Spec.Containers) {
		return field.ErrorList{field.Forbidden(path.Child("containers"), "pod updates may not add or remove containers")}
	}
	if len(p.Spec.InitContainers) != len(old.Spec.InitContainers) {
		return field.ErrorList{field.Forbidden(path.Child("initContainers"), "pod updates may not add or remove containers")}
	}
	var errs field.ErrorList
	for _, was := range old.Spec.Tolerations {
		kept := false
		for _, now := range p.Spec.Tolerations {
			kept = kept || (now.Key == was.Key && now.Effect == was.Effect && now.Operator == was.Operator && now.Value == was.Value)
		}
		if !kept {
			errs = append(errs, field.Forbidden(path.Child("tolerations"), "existing toleration can not be modified except its tolerationSeconds"))
			break
		}
	}
	munged := p.Spec.DeepCopy()
	for i := range munged.Containers {
		munged.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range munged.InitContainers {
		munged.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	munged.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	munged.Tolerations = old.Spec.Tolerations
	if len(munged.SchedulingGates) < len(old.Spec.SchedulingGates) {
		munged.SchedulingGates = old.Spec.SchedulingGates
	}
	if !equality.Semantic.DeepEqual(*munged, old.Spec) {
		errs = append(errs, field.Forbidden(path, "pod updates may not change fields other than `spec.containers[*].image`,"+
			"`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"+
			"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"))
	}
	return errs
}
