package upstream

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/deltaplane/deltaplane/services/gateway/answer"
)

// counted counts who answers watches and lists of pods.
type counted struct {
	next         http.RoundTripper
	index, other *atomic.Int64
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.next.RoundTrip(r)
	switch {
	case err != nil || r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/pods"):
	case resp.Header.Get(answer.ServedBy) == "index":
		c.index.Add(1)
	default:
		c.other.Add(1)
	}
	return resp, err
}

// Unmodified informers of client-go, typed and thus with protobuf as what they would rather have,
// have what the API server has, and its events, whether they stream the first state or list it.
func TestInformersOfClientGoThroughTheGateway(t *testing.T) {
	needsPrograms(t)
	e := newEnvironment(t)
	direct := clientOf(t, e.kubeconfig, nil)
	ctx := t.Context()
	pod := func(n int) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%d", n), Namespace: "default"},
			Spec:       corev1.PodSpec{SchedulerName: "nobody", AutomountServiceAccountToken: new(bool), Containers: []corev1.Container{{Name: "a", Image: "a"}}},
		}
	}
	for n := range 20 {
		create(t, direct, pod(n))
	}
	until(t, "pods are answered from the index", func() bool {
		var index, other atomic.Int64
		c := clientOf(t, e.gateway, func(rt http.RoundTripper) http.RoundTripper { return counted{rt, &index, &other} })
		_, err := c.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		fail(t, err)
		return index.Load() == 1
	})
	before := watchesOf(t, direct, "pods") // its own, and that of the reflector
	for _, streams := range []bool{true, false} {
		t.Run(fmt.Sprintf("watch-list %v", streams), func(t *testing.T) {
			clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, streams)
			var index, other atomic.Int64
			const many = 10
			var stores []cache.Store
			var mu sync.Mutex
			seen := map[string]int{}
			stop, cancel := context.WithCancel(ctx)
			defer cancel()
			for range many {
				hc := clientOf(t, e.gateway, func(rt http.RoundTripper) http.RoundTripper { return counted{rt, &index, &other} })
				f := informers.NewSharedInformerFactory(hc, 0)
				i := f.Core().V1().Pods().Informer()
				note := func(what string, o any) {
					if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
						o = d.Obj
					}
					mu.Lock()
					defer mu.Unlock()
					seen[what+" "+o.(*corev1.Pod).Name]++ //nolint:forcetypeassert // informers of pods have no others
				}
				_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
					AddFunc: func(o any) { note("add", o) }, UpdateFunc: func(_, o any) { note("update", o) }, DeleteFunc: func(o any) { note("delete", o) },
				})
				fail(t, err)
				f.Start(stop.Done())
				defer f.Shutdown()
				defer cancel()
				f.WaitForCacheSync(ctx.Done())
				stores = append(stores, i.GetStore())
			}
			same(t, direct, stores)
			create(t, direct, pod(100))
			_, err := direct.CoreV1().Pods("default").Patch(ctx, "p-1", types.MergePatchType, []byte(fmt.Sprintf(`{"metadata":{"annotations":{"run":"%v"}}}`, streams)), metav1.PatchOptions{})
			fail(t, err)
			fail(t, direct.CoreV1().Pods("default").Delete(ctx, "p-100", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
			for _, want := range []string{"add p-0", "add p-19", "update p-1", "add p-100", "delete p-100"} {
				until(t, want, func() bool { mu.Lock(); defer mu.Unlock(); return seen[want] == many })
			}
			same(t, direct, stores)
			if got := index.Load(); got < many {
				t.Errorf("the index answered %d lists and watches of %d informers, %d were forwarded", got, many, other.Load())
			}
			t.Logf("%d lists and watches from the index, %d forwarded", index.Load(), other.Load())
			if n := watchesOf(t, direct, "pods"); n != before {
				t.Errorf("the API server has %v watches of pods, want %v, as without informers", n, before)
			}
		})
	}
}

func clientOf(t *testing.T, kubeconfig string, wrap func(http.RoundTripper) http.RoundTripper) *kubernetes.Clientset {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	fail(t, err)
	cfg.QPS = -1
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	if wrap != nil {
		cfg.Wrap(wrap)
	}
	hc, err := rest.HTTPClientFor(cfg)
	fail(t, err)
	t.Cleanup(hc.CloseIdleConnections)
	c, err := kubernetes.NewForConfigAndClient(cfg, hc)
	fail(t, err)
	return c
}

func create(t *testing.T, c *kubernetes.Clientset, p *corev1.Pod) {
	t.Helper()
	_, err := c.CoreV1().Pods(p.Namespace).Create(t.Context(), p, metav1.CreateOptions{})
	fail(t, err)
}

// same waits until stores have what the API server has.
func same(t *testing.T, direct *kubernetes.Clientset, stores []cache.Store) {
	t.Helper()
	until(t, "the same pods as the API server", func() bool {
		list, err := direct.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		fail(t, err)
		for _, s := range stores {
			if len(s.ListKeys()) != len(list.Items) {
				return false
			}
			for _, p := range list.Items {
				o, ok, err := s.GetByKey(p.Namespace + "/" + p.Name)
				if err != nil || !ok || o.(*corev1.Pod).ResourceVersion != p.ResourceVersion || o.(*corev1.Pod).UID != p.UID { //nolint:forcetypeassert // of pods
					return false
				}
			}
		}
		return true
	})
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for !is() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within 30 s: %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// watchesOf is how many watches of a resource the API server has open.
func watchesOf(t *testing.T, direct *kubernetes.Clientset, resource string) (n float64) {
	t.Helper()
	body, err := direct.CoreV1().RESTClient().Get().AbsPath("/metrics").Stream(t.Context())
	fail(t, err)
	defer body.Close()
	text, err := io.ReadAll(body)
	fail(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_longrunning_requests{") && strings.Contains(line, `resource="`+resource+`"`) && strings.Contains(line, `verb="WATCH"`) {
			var one float64
			_, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &one)
			fail(t, err)
			n += one
		}
	}
	return n
}
