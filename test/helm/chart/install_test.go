package chart

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

const kubeModule = "../../kube"

// A realCluster is an API server without kubelets, for a test alone.
type realCluster struct {
	file    string
	config  *rest.Config
	dynamic dynamic.Interface
	typed   kubernetes.Interface
	mapper  meta.RESTMapper
}

func startCluster(t *testing.T) *realCluster {
	t.Helper()
	if os.Getenv("DELTAPLANE_KUBE") != "1" {
		t.Skip("DELTAPLANE_KUBE is not 1: this needs a real API server")
	}
	dir := t.TempDir()
	kube := func(args ...string) {
		t.Helper()
		cmd := exec.Command("go", append([]string{"run", "./cmd/kube"}, args...)...)
		cmd.Dir = kubeModule
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("kube %s: %v\n%s", args[0], err, out)
		}
	}
	kube("up", "--detach", "--dir", dir, "--nodes", "0")
	t.Cleanup(func() { kube("down", "--dir", dir) })
	c := &realCluster{file: filepath.Join(dir, "kubeconfig")}
	var err error
	must := func() {
		if err != nil {
			t.Fatal(err)
		}
	}
	c.config, err = clientcmd.BuildConfigFromFlags("", c.file)
	must()
	c.config.QPS = -1
	c.dynamic, err = dynamic.NewForConfig(c.config)
	must()
	c.typed, err = kubernetes.NewForConfig(c.config)
	must()
	d, err := discovery.NewDiscoveryClientForConfig(c.config)
	must()
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(d))
	return c
}

func (c *realCluster) helm(t *testing.T, args ...string) {
	t.Helper()
	if out, err := Helm(append(args, "--namespace", Namespace, "--kubeconfig", c.file)...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// get reads the object that a manifest describes.
func (c *realCluster) get(t *testing.T, d Document) (*unstructured.Unstructured, error) {
	t.Helper()
	var want unstructured.Unstructured
	if err := yaml.Unmarshal([]byte(d.Text), &want.Object); err != nil {
		t.Fatal(err)
	}
	kind := want.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		t.Fatal(err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return c.dynamic.Resource(mapping.Resource).Namespace(want.GetNamespace()).Get(t.Context(), want.GetName(), metav1.GetOptions{})
	}
	return c.dynamic.Resource(mapping.Resource).Get(t.Context(), want.GetName(), metav1.GetOptions{})
}

// left is all that carries the release's label, in the whole cluster.
func (c *realCluster) left(ctx context.Context) ([]string, error) {
	lists, err := c.typed.Discovery().ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") {
				continue
			}
			all, err := c.dynamic.Resource(version.WithResource(r.Name)).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + Release})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			for _, o := range all.Items {
				out = append(out, o.GetKind()+" "+o.GetName())
			}
		}
	}
	return out, nil
}

// The chart goes onto an API server, is changed there, and leaves nothing behind.
func TestTheChartIsInstalledUpgradedAndUninstalled(t *testing.T) { //nolint:paralleltest // Helm keeps its settings in variables
	c := startCluster(t)
	namespace := &corev1.Namespace{}
	namespace.Name = Namespace
	namespace.Labels = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	if _, err := c.typed.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	check := func(args ...string) map[string]*unstructured.Unstructured {
		t.Helper()
		rendered, err := Template(root, args...)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]*unstructured.Unstructured{}
		for _, d := range Documents(rendered) {
			o, err := c.get(t, d)
			if err != nil {
				t.Errorf("%s: %v", d.Source, err)
				continue
			}
			got[o.GetKind()+" "+o.GetName()] = o
		}
		return got
	}
	all := []string{"--set", "controllers.run={job,nodelifecycle,tainteviction,podgc}"}

	c.helm(t, "install", Release, Dir(root), "--set", "queue.replicas=2")
	first := check()
	c.helm(t, append([]string{"upgrade", Release, Dir(root), "--set", "queue.replicas=3,image.tag=next"}, all...)...)
	second := check(all...)
	for _, name := range []string{"Deployment deltaplane-queue"} {
		replicas, _, _ := unstructured.NestedInt64(second[name].Object, "spec", "replicas")
		if was, _, _ := unstructured.NestedInt64(first[name].Object, "spec", "replicas"); was != 2 || replicas != 3 {
			t.Errorf("%s has %d replicas and then %d, want 2 and 3", name, was, replicas)
		}
	}
	if first["Deployment deltaplane-controllers"] != nil || second["Deployment deltaplane-controllers"] == nil {
		t.Error("controllers run where none are named, or not where they are")
	}
	c.admitted(t, all)
	c.helm(t, "upgrade", Release, Dir(root), "--set", "redis.replicas=1,networkPolicy.enabled=false", "--reset-values")
	left, err := c.left(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range left {
		if strings.Contains(o, "controllers") || strings.HasPrefix(o, "NetworkPolicy") {
			t.Errorf("%s is left by an upgrade without it", o)
		}
	}

	c.helm(t, "uninstall", Release)
	deadline, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if left, err = c.left(deadline); err != nil {
			t.Fatal(errors.Join(err, context.Cause(deadline)))
		}
		if len(left) == 0 {
			break
		}
		t.Log("still there:", left)
	}
	secrets, err := c.typed.CoreV1().Secrets(Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(secrets.Items) > 0 {
		t.Errorf("secrets are left: %v %v", secrets.Items, err)
	}
	c.kustomized(t)
}

// admitted has the API server judge the pods of each workload, which it does not make: nothing in a
// namespace that is restricted may be refused.
func (c *realCluster) admitted(t *testing.T, args []string) {
	t.Helper()
	for _, w := range workloads(objects(t, args)) {
		pod := &corev1.Pod{ObjectMeta: w.template.ObjectMeta, Spec: w.template.Spec}
		pod.Name, pod.Namespace = w.name+"-judged", Namespace
		for _, claim := range w.claims {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		}
		if _, err := c.typed.CoreV1().Pods(Namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Errorf("a pod of %s: %v", w.name, err)
		}
	}
}

// kustomized applies deploy/kubernetes with kubectl, and takes it away.
func (c *realCluster) kustomized(t *testing.T) {
	t.Helper()
	build := exec.Command("go", "run", "./cmd/kube", "build")
	build.Dir = kubeModule
	programs, err := build.Output()
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) []byte {
		t.Helper()
		cmd := exec.Command(filepath.Join(strings.TrimSpace(string(programs)), "kubectl"), append([]string{"--kubeconfig", c.file}, args...)...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("kubectl %v: %v\n%s", args, err, out)
		}
		return out
	}
	folder := filepath.Join(root, "deploy", "kubernetes")
	run("apply", "-k", folder)
	var list struct{ Items []unstructured.Unstructured }
	if err := json.Unmarshal(run("get", "-k", folder, "-o", "json"), &list); err != nil || len(list.Items) < 30 {
		t.Errorf("deploy/kubernetes is %d objects, %v", len(list.Items), err)
	}
	run("delete", "-k", folder)
}
