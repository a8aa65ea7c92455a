package system

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// A gateway that is killed loses no write that it has answered, and its watchers go on behind what
// they have: they hear of everything, and nobody has to list again.
func TestRealAGatewayThatIsKilledLosesNoWriteAndMakesNobodyListAgain(t *testing.T) {
	t.Parallel()
	kubeconfig := os.Getenv("DELTAPLANE_KUBECONFIG")
	if kubeconfig == "" {
		t.Skip("DELTAPLANE_KUBECONFIG is not set: `make kube` starts a real API server and prints one")
	}
	rc, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	u := newUp(t, kubeconfig)
	u.start(t, "up", append(u.upArgs(), "--resources", "*", "--skip", "queue,controllers,nodes,gateway")...)
	port := embeddedtest.Ports(t, 1)[0]
	args := []string{"serve", "gateway", "--listen", port, "--admin-listen", "off", "--kubeconfig", kubeconfig, "--index-url", u.ports["index"]}
	u.start(t, "gateway", args...)
	direct := loadKubeconfig(t, kubeconfig)
	g := &API{Base: "http://" + port, Client: &http.Client{Transport: withToken(rc.BearerToken)}}
	served := func(ctx context.Context) error {
		return g.servedByIndex(ctx, "/api/v1/configmaps?resourceVersion=0")
	}
	eventually(t, time.Minute, "the gateway answers from the index", served)
	namespace := fmt.Sprintf("killed-%d", time.Now().UnixNano()%1e9)
	if err := direct.create(t.Context(), "/api/v1/namespaces", map[string]any{"metadata": metav1.ObjectMeta{Name: namespace}}, nil); err != nil {
		t.Fatal(err)
	}
	path := "/api/v1/namespaces/" + namespace + "/configmaps"
	t.Cleanup(func() {
		_ = direct.delete(context.WithoutCancel(t.Context()), "/api/v1/namespaces/"+namespace, "Background")
	})

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &follower{api: g, path: path, seen: map[string]bool{}}
	var parts sync.WaitGroup
	parts.Go(func() { w.run(ctx) })
	writing, stop := context.WithCancel(ctx)
	var answered atomic.Int64 // the objects up to which creations were answered
	parts.Go(func() {
		for i := 0; writing.Err() == nil; {
			err := g.create(writing, path, map[string]any{"metadata": metav1.ObjectMeta{Name: fmt.Sprintf("n-%d", i)}}, nil)
			if err == nil || isStatus(err, http.StatusConflict) { // it was done, and its answer was lost
				i++
				answered.Store(int64(i))
			}
		}
	})
	more := func(n int64) func(context.Context) error {
		return func(context.Context) error {
			if have := answered.Load(); have < n {
				return fmt.Errorf("%d writes are answered", have)
			}
			return nil
		}
	}
	for range 4 {
		eventually(t, time.Minute, "writes go on", more(answered.Load()+50))
		u.stop(t, "gateway", syscall.SIGKILL)
		u.start(t, "gateway", args...)
		eventually(t, time.Minute, "the gateway answers again", served)
	}
	eventually(t, time.Minute, "writes go on", more(answered.Load()+50))
	stop()
	var all metav1.PartialObjectMetadataList
	if err := direct.get(t.Context(), path, &all); err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, o := range all.Items {
		there[o.Name] = true
	}
	for i := range answered.Load() {
		if name := fmt.Sprintf("n-%d", i); !there[name] {
			t.Errorf("%s was answered, and is not there", name)
		}
	}
	eventually(t, time.Minute, "the watcher has heard of all", func(context.Context) error { return w.lacks(there) })
	cancel()
	parts.Wait()
	t.Logf("%d writes, %d watches, %d lists", answered.Load(), w.watches, w.lists)
	if w.lists != 1 {
		t.Errorf("the watcher has listed %d times", w.lists)
	}
}

// follower lists once and watches from there, as informers do.
type follower struct {
	api  *API
	path string

	lists, watches int
	mu             sync.Mutex
	seen           map[string]bool // guarded by mu
}

type followed struct {
	Type   string
	Object struct {
		Code     int
		Metadata struct{ Name, ResourceVersion string }
	}
}

func (f *follower) run(ctx context.Context) {
	version := ""
	for ctx.Err() == nil {
		if version == "" {
			var list metav1.PartialObjectMetadataList
			if f.api.get(ctx, f.path, &list) != nil {
				continue
			}
			f.lists++
			for _, o := range list.Items {
				f.see(o.Name)
			}
			version = list.ResourceVersion
		}
		version = f.watch(ctx, version)
	}
}

// watch is where the next watch begins; empty after 410.
func (f *follower) watch(ctx context.Context, version string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.api.Base+f.path+"?watch=1&allowWatchBookmarks=true&resourceVersion="+version, nil)
	if err != nil {
		return version
	}
	resp, err := f.api.Client.Do(req)
	if err != nil {
		return version
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusGone:
		return ""
	default:
		_, _ = io.Copy(io.Discard, resp.Body)
		return version
	}
	f.watches++
	for lines := bufio.NewReader(resp.Body); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return version
		}
		var e followed
		if json.Unmarshal(line, &e) != nil {
			return version
		}
		if e.Type == "ERROR" {
			if e.Object.Code == http.StatusGone {
				return ""
			}
			return version
		}
		if e.Type != "BOOKMARK" {
			f.see(e.Object.Metadata.Name)
		}
		version = e.Object.Metadata.ResourceVersion
	}
}

func (f *follower) see(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[name] = true
}

func (f *follower) lacks(all map[string]bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name := range all {
		if !f.seen[name] {
			return fmt.Errorf("it has not heard of %s", name)
		}
	}
	return nil
}
