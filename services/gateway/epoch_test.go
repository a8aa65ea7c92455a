package gateway_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/gateway"
)

// A cluster whose etcd is restored begins again, with versions that were there before and mean
// something else: nothing of before is shown after that, and no watch goes on across it.
func TestNothingOfBeforeIsShownOfAClusterThatWasRestored(t *testing.T) {
	t.Parallel()
	cfg := devcluster.Config{BookmarkEvery: time.Hour, FreshTimeout: 100 * time.Millisecond} // an API server has no bookmark for a watch from a version to come
	first, second := devclustertest.Start(t, cfg), devclustertest.Start(t, cfg)
	var now atomic.Pointer[url.URL]
	at := func(u string) *url.URL {
		parsed, err := url.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	now.Store(at(first.URL()))
	between := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(now.Load()) }, FlushInterval: -1})
	t.Cleanup(func() { end(between) })
	r := &rig{t: t, direct: between.URL, api: plain(t)}
	r.start(kube.Config{URL: between.URL}, func(cfg *gateway.Config) { cfg.AllowAll = true })
	const path = "/api/v1/namespaces/default/configmaps"
	create := func(base, name string) {
		r.ask(base, http.MethodPost, path, `{"metadata":{"name":"`+name+`"}}`, "Content-Type", "application/json").Body.Close()
	}
	for i := range 50 {
		create(first.URL(), "old-"+strconv.Itoa(i))
	}
	r.mirrored(path, path+"/old-49")
	list := func(query string) (all string, version uint64, by string) {
		by, code, body := r.read(path + query)
		var l struct {
			Metadata struct{ ResourceVersion string }
			Items    []struct{ Metadata struct{ Name string } }
		}
		if err := json.Unmarshal([]byte(body), &l); err != nil || code != http.StatusOK {
			return "", 0, by
		}
		names := make([]string, len(l.Items))
		for i, o := range l.Items {
			names[i] = o.Metadata.Name
		}
		version, _ = strconv.ParseUint(l.Metadata.ResourceVersion, 10, 64)
		return strings.Join(names, " "), version, by
	}
	_, before, _ := list(any0)
	watch := r.ask(r.url, http.MethodGet, path+"?watch=1&resourceVersion="+strconv.FormatUint(before, 10), "")
	defer watch.Body.Close()

	create(second.URL(), "new")
	now.Store(at(second.URL()))
	between.CloseClientConnections()
	ended := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(bufio.NewReader(watch.Body))
		ended <- string(all)
	}()
	deadline := time.Now().Add(20 * time.Second)
	for {
		if names, _, by := list(""); strings.Contains(names, "old") {
			t.Fatalf("the most recent state is that of before: %q by %q", names, by)
		}
		names, version, by := list(any0)
		if by == "index" && strings.Contains(names, "new") {
			if strings.Contains(names, "old") || version >= before {
				t.Errorf("after it was restored there is %q at %d, and %d was known before", names, version, before)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the new state does not come: %q at %d by %q: %v", names, version, by, r.gather())
		}
	}
	if names, _, _ := list(""); strings.Contains(names, "old") || !strings.Contains(names, "new") {
		t.Errorf("the most recent state is %q", names)
	}
	if said := <-ended; strings.Contains(said, `"new"`) {
		t.Errorf("the watch of before says %s", said)
	}
	if by, _, _ := r.read(path + "?resourceVersionMatch=Exact&resourceVersion=" + strconv.FormatUint(before, 10)); by == "index" {
		t.Error("a state of before is shown")
	}
	create(r.url, "newer")
	if names, _, _ := list(""); !strings.Contains(names, "newer") {
		t.Errorf("what was written after that is not in %q", names)
	}
}
