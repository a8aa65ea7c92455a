package population

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// PodsPerNode is how many pods every node of a population has: the hits of a ByIndex.
	PodsPerNode = 30
	// FirstRV is the resource version of a population's first object.
	FirstRV = 1_000_000_000
)

// population is pods as a cluster of many teams holds them: every template is a
// ReplicaSet with labels, containers and a status of its own, its pods are
// spread over all nodes, and each node has PodsPerNode of them. The same seed
// gives the same population.
type population struct {
	seed   uint64
	owners []*appsv1.ReplicaSet
	Pods   []*corev1.Pod
}

// Populate makes a population of at least n pods of the given number of templates, to whole nodes.
func Populate(seed uint64, n, templates int) population {
	g := NewGenerator(seed, templates)
	p := population{seed: seed, owners: g.owners}
	for _, pod := range g.Each(n) {
		p.Pods = append(p.Pods, pod)
	}
	return p
}

// generator makes the pods of a population one at a time, for those that are
// too large to be held. It is for one goroutine and one pass.
type generator struct {
	rand     *rand.Rand
	patterns []*corev1.Pod
	owners   []*appsv1.ReplicaSet
}

// NewGenerator makes the same pods for the same seed and number of templates.
func NewGenerator(seed uint64, templates int) *generator {
	g := &generator{rand: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))}
	for i := range templates {
		t := template(g.rand, i)
		g.patterns = append(g.patterns, t)
		g.owners = append(g.owners, replicaSet(g.rand, t))
	}
	return g
}

// Each makes at least n pods, to whole nodes, each with the number of its template.
func (g *generator) Each(n int) iter.Seq2[int, *corev1.Pod] {
	return func(yield func(int, *corev1.Pod) bool) {
		for i, seat := range g.rand.Perm((n + PodsPerNode - 1) / PodsPerNode * PodsPerNode) {
			// Half of the pods belong to a tenth of the templates, as they do in life.
			t := i % len(g.patterns)
			if i >= len(g.patterns) && i%2 == 0 {
				t = g.rand.IntN(max(len(g.patterns)/10, 1))
			}
			if !yield(t, pod(g.rand, g.patterns[t], g.owners[t], seat/PodsPerNode, i)) {
				return
			}
		}
	}
}

func nodeName(i int) string {
	return fmt.Sprintf("ip-10-%d-%d-17.eu-central-1.compute.internal", i/250, i%250)
}

// Payload is a pod as the log carries it: kind and apiVersion present, no managed fields.
func Payload(p *corev1.Pod) []byte {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // a Pod that was made here always has a JSON form
	}
	return text
}

// Lines is the population for test/kube: an object a line, owners first, without versions.
func (p population) Lines() ([]byte, error) {
	var out []byte
	for _, o := range p.owners {
		text, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		out = append(append(out, text...), '\n')
	}
	for _, o := range p.Pods {
		bare := *o
		bare.ResourceVersion = ""
		out = append(append(out, Payload(&bare)...), '\n')
	}
	return out, nil
}

var (
	Words   = []string{"checkout", "billing", "search", "ledger", "frontend", "gateway", "catalog", "session", "mailer", "report", "pricing", "stock", "audit", "media", "export"}
	roles   = []string{"api", "worker", "cache", "consumer", "cron", "web", "proxy", "migrate"}
	tiers   = []string{"critical", "standard", "batch"}
	envs    = []string{"DATABASE_URL", "LOG_LEVEL", "FEATURE_FLAGS", "OTEL_EXPORTER_OTLP_ENDPOINT", "KAFKA_BROKERS", "REDIS_ADDR", "REGION", "HTTP_TIMEOUT", "MAX_CONNECTIONS", "SENTRY_ENVIRONMENT"}
	images  = []string{"registry.example.com/platform/", "ghcr.io/example/", "docker.io/library/"}
	MadeAt  = time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC)
	letters = "bcdfghjklmnpqrstvwxz2456789"
)

// Suffix is a random suffix of n characters, as the API server appends to names.
func Suffix(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[r.IntN(len(letters))]
	}
	return string(b)
}

func digits(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = "0123456789abcdef"[r.IntN(16)]
	}
	return string(b)
}

// UID is a random UID.
func UID(r *rand.Rand) types.UID {
	return types.UID(digits(r, 8) + "-" + digits(r, 4) + "-4" + digits(r, 3) + "-9" + digits(r, 3) + "-" + digits(r, 12))
}

// template is a pod without what differs between the pods of one ReplicaSet.
func template(r *rand.Rand, i int) *corev1.Pod {
	app := Words[r.IntN(len(Words))] + "-" + roles[r.IntN(len(roles))] + "-" + strconv.Itoa(i)
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}}
	p.Namespace = fmt.Sprintf("team-%02d", r.IntN(40))
	p.Labels = map[string]string{
		"app.kubernetes.io/name": app, "app.kubernetes.io/instance": app + "-" + Suffix(r, 4),
		"app.kubernetes.io/version": fmt.Sprintf("%d.%d.%d", r.IntN(9), r.IntN(30), r.IntN(20)),
		"team":                      p.Namespace, "tier": tiers[r.IntN(len(tiers))], "pod-template-hash": Suffix(r, 10),
	}
	p.Annotations = map[string]string{
		"prometheus.io/scrape": "true", "prometheus.io/port": strconv.Itoa(8000 + r.IntN(1000)),
		"checksum/config": digits(r, 64), "kubectl.kubernetes.io/restartedAt": MadeAt.Add(time.Duration(r.IntN(1e6)) * time.Second).Format(time.RFC3339),
	}
	p.Spec = corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst, ServiceAccountName: app,
		SchedulerName: "default-scheduler", TerminationGracePeriodSeconds: new(int64(30 + r.IntN(60))),
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), FSGroup: new(int64(1000 + r.IntN(9000)))}, EnableServiceLinks: new(true),
		PriorityClassName: "tier-" + p.Labels["tier"], Priority: new(int32(r.IntN(3) * 1000)), PreemptionPolicy: new(corev1.PreemptLowerPriority),
		Tolerations: []corev1.Toleration{
			{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
			{Key: "node.kubernetes.io/unreachable", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
		},
		Volumes: []corev1.Volume{{Name: "kube-api-access-" + Suffix(r, 5), VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			DefaultMode: new(int32(420)),
			Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(3607))}},
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
			},
		}}}},
	}
	for c := range 1 + r.IntN(2) {
		p.Spec.Containers = append(p.Spec.Containers, container(r, app, c, p.Spec.Volumes[0].Name))
	}
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: app + "-config"}, DefaultMode: new(int32(420))},
	}})
	return p
}

func container(r *rand.Rand, app string, i int, token string) corev1.Container {
	port := int32(8080 + i)
	c := corev1.Container{
		Name: []string{app, "sidecar"}[i], Image: images[r.IntN(len(images))] + app + ":" + digits(r, 12), ImagePullPolicy: corev1.PullIfNotPresent,
		Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: port, Protocol: corev1.ProtocolTCP}},
		Args:  []string{"--config=/etc/" + app + "/config.yaml", "--listen=:" + strconv.Itoa(int(port))},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse(strconv.Itoa(50*(1+r.IntN(20))) + "m"), "memory": resource.MustParse(strconv.Itoa(64*(1+r.IntN(16))) + "Mi")},
			Limits:   corev1.ResourceList{"memory": resource.MustParse(strconv.Itoa(128*(1+r.IntN(16))) + "Mi")},
		},
		TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		VolumeMounts: []corev1.VolumeMount{
			{Name: "config", MountPath: "/etc/" + app, ReadOnly: true},
			{Name: token, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true},
		},
		SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
	}
	probe := func(path string) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:   corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("http"), Scheme: corev1.URISchemeHTTP}},
			TimeoutSeconds: 1, PeriodSeconds: int32(5 + r.IntN(20)), SuccessThreshold: 1, FailureThreshold: 3,
		}
	}
	c.ReadinessProbe, c.LivenessProbe = probe("/ready"), probe("/live")
	for _, at := range r.Perm(len(envs))[:4+r.IntN(5)] {
		c.Env = append(c.Env, corev1.EnvVar{Name: envs[at], Value: envs[at] + "-" + Suffix(r, 8+r.IntN(30))})
	}
	return c
}

func replicaSet(r *rand.Rand, t *corev1.Pod) *appsv1.ReplicaSet {
	s := &appsv1.ReplicaSet{TypeMeta: metav1.TypeMeta{Kind: "ReplicaSet", APIVersion: "apps/v1"}}
	s.Name, s.Namespace = t.Labels["app.kubernetes.io/name"]+"-"+t.Labels["pod-template-hash"], t.Namespace
	s.UID, s.CreationTimestamp = UID(r), metav1.NewTime(MadeAt)
	s.Spec.Replicas = new(int32(1))
	s.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"pod-template-hash": t.Labels["pod-template-hash"]}}
	s.Spec.Template.Labels, s.Spec.Template.Spec = t.Labels, t.Spec
	return s
}

// pod is the i-th pod, a running one, on a node. What is drawn for each is what a
// cluster draws for each: name, UID, token volume, addresses, containers' IDs and
// times; images are those of the template.
func pod(r *rand.Rand, t *corev1.Pod, owner *appsv1.ReplicaSet, node, i int) *corev1.Pod {
	p := *t
	p.GenerateName = owner.Name + "-"
	p.Name = p.GenerateName + Suffix(r, 5) + strconv.Itoa(i)
	p.UID, p.ResourceVersion = UID(r), strconv.Itoa(FirstRV+i)
	at := MadeAt.Add(time.Duration(r.IntN(1e6)) * time.Second)
	later := func(most int) metav1.Time {
		at = at.Add(time.Duration(r.IntN(most)) * time.Second)
		return metav1.NewTime(at)
	}
	p.CreationTimestamp = metav1.NewTime(at)
	p.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner.Name, UID: owner.UID, Controller: new(true), BlockOwnerDeletion: new(true),
	}}
	p.Spec.NodeName = nodeName(node)
	token := "kube-api-access-" + Suffix(r, 5)
	p.Spec.Volumes = slices.Clone(t.Spec.Volumes)
	p.Spec.Volumes[0].Name = token
	p.Spec.Containers = slices.Clone(t.Spec.Containers)
	for c := range p.Spec.Containers {
		mounts := slices.Clone(p.Spec.Containers[c].VolumeMounts)
		mounts[1].Name = token
		p.Spec.Containers[c].VolumeMounts = mounts
	}
	ip, host := fmt.Sprintf("10.%d.%d.%d", 64+i/62500, i/250%250, i%250+1), fmt.Sprintf("10.1.%d.%d", node/250, node%250+1)
	scheduled, started := later(2), later(3)
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: host, HostIPs: []corev1.HostIP{{IP: host}}, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		StartTime: &started, QOSClass: corev1.PodQOSBurstable,
	}
	running := later(40)
	ready := later(60)
	for _, c := range []struct {
		kind corev1.PodConditionType
		at   metav1.Time
	}{{"PodReadyToStartContainers", running}, {corev1.PodInitialized, started}, {corev1.PodReady, ready}, {corev1.ContainersReady, ready}, {corev1.PodScheduled, scheduled}} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c.kind, Status: corev1.ConditionTrue, LastTransitionTime: c.at})
	}
	for _, c := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: imageID(c.Image), ContainerID: "containerd://" + digits(r, 64),
			Ready: true, Started: new(true), RestartCount: int32(r.IntN(3)), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: running}},
		})
	}
	return &p
}

// imageID names an image by its content, the same wherever it runs.
func imageID(image string) string {
	name, _, _ := strings.Cut(image, ":")
	return fmt.Sprintf("%s@sha256:%x", name, sha256.Sum256([]byte(image)))
}
