package chart

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

const root = "../../.."

// decoder takes no field that the API does not have, and none twice.
var decoder = func() runtime.Decoder {
	s := runtime.NewScheme()
	if err := scheme.AddToScheme(s); err != nil {
		panic(err)
	}
	if err := certmanager.AddToScheme(s); err != nil {
		panic(err)
	}
	return serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDeserializer()
}()

var programs string // folder of what tests build

var built = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programs, "deltaplane")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/deltaplane")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "deltaplane-chart-")
	if err != nil {
		panic(err)
	}
	programs = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// program is our program, built once.
func program(t *testing.T) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// cases are what the chart is rendered with; all of them are held to the same rules.
var cases = map[string][]string{
	"defaults":         nil,
	"everything":       {"--set", "controllers.run={job,nodelifecycle,tainteviction,podgc}", "--set", "gateway.enabled=true,gateway.clientCertificates=impersonate,console.enabled=true,console.hosts={console.example.com},admission.enabled=true,tls.mode=cert-manager"},
	"secrets":          {"--set", "controllers.run={job}", "--set", "tls.mode=secrets,gateway.enabled=true,console.enabled=true,console.replicas=2,admission.enabled=true,admission.caBundle=QUJD"},
	"one of each":      {"--set", "controllers.run={job}", "--set", "reflector.replicas=1,indexer.replicas=1,queue.replicas=1,controllers.replicas=1,nats.replicas=1,redis.replicas=1"},
	"five":             {"--set", "nats.replicas=5,redis.replicas=5"},
	"no persistence":   {"--set", "nats.persistence.enabled=false,redis.persistence.enabled=false"},
	"index kept":       {"--set", "indexer.persistence.enabled=true,indexer.persistence.storageClassName=fast"},
	"external":         {"--set", "nats.enabled=false,nats.url=nats://nats.example:4222,redis.enabled=false,redis.url=redis://redis.example:6379/0"},
	"external secured": {"--set", "controllers.run={job}", "--set", "nats.enabled=false,nats.url=tls://nats.example:4222,nats.auth.secretName=n,nats.auth.creds=true,nats.auth.clientCertificate=true,redis.enabled=false,redis.url=rediss+sentinel://a.example:26379/main,redis.username=dp,redis.auth.secretName=r,redis.auth.password=true,redis.auth.authority=true,redis.auth.clientCertificate=true"},
	"no roles":         {"--set", "rbac.create=false"},
	"no policies":      {"--set", "networkPolicy.enabled=false"},
	"policies":         {"--set-json", `networkPolicy={"enabled":true,"clients":[{"namespaceSelector":{"matchLabels":{"team":"a"}}}],"monitoring":[{"podSelector":{"matchLabels":{"app":"prometheus"}}}]}`},
	"placed":           {"--set", "reflector.antiAffinity=required,queue.antiAffinity=none,indexer.priorityClassName=high,nats.nodeSelector.disk=fast,imagePullSecrets={pull}", "--set-json", `redis.affinity={"nodeAffinity":{}}`, "--set-json", `queue.tolerations=[{"operator":"Exists"}]`},
	"labelled":         {"--set", "reflector.podLabels.team=a,reflector.podAnnotations.why=so,nats.podAnnotations.why=so"},
	"extra":            {"--set", "reflector.extraArgs={--page-size=100},otlpEndpoint=otel:4317,log.format=text,log.level=debug", "--set-json", `queue.extraVolumes=[{"name":"x","emptyDir":{}}]`, "--set-json", `queue.extraVolumeMounts=[{"name":"x","mountPath":"/x"}]`},
	"mirror all":       {"--set", "reflector.mirror={*},reflector.keepManagedFields=true"},
	"mirror some":      {"--set-json", `reflector.mirror=["deployments.v1.apps/web","configmaps/a+b",{"resource":"pods","namespaces":["a"],"label_selector":"app=web"}]`, "--set-json", `reflector.extraRules=[{"apiGroups":["apps"],"resources":["statefulsets"],"verbs":["list","watch"]}]`},
	"named":            {"--set", "fullnameOverride=plane,image.repository=registry.example/deltaplane,image.tag=v1"},
	"cluster issuer":   {"--set", "tls.mode=cert-manager,tls.issuer.name=corp,tls.issuer.kind=ClusterIssuer"},
}

type object struct {
	runtime.Object
	source string
}

func (o object) name() string {
	m, _ := meta.Accessor(o.Object)
	return o.GetObjectKind().GroupVersionKind().Kind + " " + m.GetName()
}

// objects renders a case and decodes it.
func objects(t *testing.T, args []string) []object {
	t.Helper()
	rendered, err := Template(root, args...)
	if err != nil {
		t.Fatal(err)
	}
	docs := Documents(rendered)
	if got, want := len(docs), strings.Count(rendered, "\n# Source: "); got != want {
		t.Fatalf("%d documents, want %d", got, want)
	}
	out := make([]object, 0, len(docs))
	for _, d := range docs {
		o, _, err := decoder.Decode([]byte(d.Text), nil, nil)
		if err != nil {
			t.Fatalf("%s: %v\n%s", d.Source, err, d.Text)
		}
		out = append(out, object{o, d.Source})
	}
	return out
}

// workload is what runs pods.
type workload struct {
	name     string
	selector map[string]string
	template corev1.PodTemplateSpec
	claims   []corev1.PersistentVolumeClaim
	service  string
	replicas int32
}

func workloads(all []object) []workload {
	var out []workload
	for _, o := range all {
		switch w := o.Object.(type) {
		case *appsv1.Deployment:
			out = append(out, workload{w.Name, w.Spec.Selector.MatchLabels, w.Spec.Template, nil, "", *w.Spec.Replicas})
		case *appsv1.StatefulSet:
			out = append(out, workload{w.Name, w.Spec.Selector.MatchLabels, w.Spec.Template, w.Spec.VolumeClaimTemplates, w.Spec.ServiceName, *w.Spec.Replicas})
		}
	}
	return out
}

// selects reports whether a selector, which must not be empty, has these labels.
func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return len(selector) > 0
}

func TestWhatIsMadeOfTheChartIsUnchanged(t *testing.T) { //nolint:paralleltest // Helm keeps its settings in variables
	files, err := Files(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil || string(got) != want {
			t.Errorf("%s is not what the chart says (%v): run make chart-render", name, err)
		}
	}
	there, err := filepath.Glob(filepath.Join(root, "deploy", "kubernetes", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range there {
		if name := "deploy/kubernetes/" + filepath.Base(path); files[name] == "" {
			t.Errorf("%s is not made of the chart", name)
		}
	}
}

func TestTheChartHasNoWarnings(t *testing.T) { //nolint:paralleltest // see above
	for name, args := range cases {
		out, err := Helm(append([]string{"lint", "--strict", "--kube-version", KubeVersion, Dir(root)}, args...)...)
		if err != nil || strings.Contains(out, "[WARNING]") || strings.Contains(out, "[ERROR]") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// What Prometheus finds by deploy/monitoring: a service of each part that has the port.
func TestEachPartOfOursHasAServiceForMetrics(t *testing.T) { //nolint:paralleltest // see above
	all := objects(t, cases["everything"])
	for _, w := range workloads(all) {
		part := w.template.Labels["app.kubernetes.io/component"]
		if part == "nats" || part == "redis" {
			continue
		}
		if !slices.ContainsFunc(all, func(o object) bool {
			s, is := o.Object.(*corev1.Service)
			return is && s.Labels["app.kubernetes.io/component"] == part && selects(s.Spec.Selector, w.template.Labels) &&
				slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == "admin" })
		}) {
			t.Errorf("nobody finds the metrics of %s", part)
		}
	}
}

func TestPartsAreNamedInDocuments(t *testing.T) { //nolint:paralleltest // see above
	var got []string
	for _, w := range workloads(objects(t, cases["everything"])) {
		got = append(got, w.name)
	}
	slices.Sort(got)
	want := []string{"deltaplane-console", "deltaplane-controllers", "deltaplane-gateway", "deltaplane-indexer", "deltaplane-nats", "deltaplane-queue", "deltaplane-redis", "deltaplane-reflector"}
	if !slices.Equal(got, want) {
		t.Errorf("everything runs %v, want %v", got, want)
	}
}
