package reflector_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

const listHead = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"20"},"items":[`

func TestAListIsPublishedWhileItArrivesAndSyncedWhenItIsComplete(t *testing.T) {
	t.Parallel()
	const half = 200
	a := newAPI(t)
	goOn := make(chan struct{})
	a.onPage = func(_ int, w *wire) bool {
		all := items(2*half, 7)
		w.send(listHead + strings.Join(all[:half], ",") + ",")
		select {
		case <-goOn:
		case <-w.done:
		}
		w.send(strings.Join(all[half:], ",") + "]}")
		return true
	}
	m := mirrored(t, a, quick())
	m.until(t, "most of the first half", func() bool { return len(m.live()) > half/2 })
	if m.readable() || len(m.kinds(delta.KindSynced)) > 0 {
		t.Error("half a list made the collection readable")
	}
	close(goOn)
	m.until(t, "all of it", func() bool { return m.revision().RV == "20" && len(m.live()) == 2*half })
	if n := len(a.requests(false)); n != 1 {
		t.Errorf("%d lists, want 1", n)
	}
}

func TestAListThatBreaksOffMovesNothingButWhatItHeld(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) {
		if n == 1 {
			return 200, list("10", "", item("same", 1), item("gone", 2), item("changed", 3))
		}
		return 200, list("20", "", item("same", 1), item("changed", 15), item("new", 16))
	}
	seen, broken, again := make(chan struct{}), make(chan struct{}), make(chan struct{})
	a.onPage = func(n int, w *wire) bool {
		switch n {
		case 2: // what it held is true, and more would have followed
			a.wait(seen)
			w.send(listHead + item("changed", 15) + "," + item("new", 16) + `,{"metadata":{"name":"ha`)
			panic(http.ErrAbortHandler)
		case 3:
			close(broken)
			a.wait(again)
		}
		return false
	}
	a.onWatch = func(n int, _ url.Values, w *wire) {
		if n == 1 {
			w.send(errorEvent(410, "Expired"))
			return
		}
		w.send()
		w.hold()
	}
	m := mirrored(t, a, quick())
	m.until(t, "the first list", func() bool { return m.revision().RV == "10" && len(m.kinds(delta.KindDelta)) == 3 })
	close(seen)
	<-broken
	m.until(t, "what the broken list held", func() bool {
		live := m.live()
		return live["default/changed"] == "15" && live["default/new"] == "16"
	})
	if live := m.live(); m.revision().RV != "10" || live["default/gone"] != "2" || len(live) != 4 {
		t.Errorf("revision %v, %v; want W and what was not listed as they were", m.revision(), live)
	}
	if n := len(m.kinds(delta.KindSynced)); n != 1 {
		t.Errorf("%d synced records, want none of the broken list", n)
	}
	close(again)
	m.until(t, "the complete list", func() bool { return m.revision().RV == "20" })
	if r, _ := m.get("default/gone"); !r.Tombstone() || r.DeleteReason != delta.Inferred || r.RV != "20" {
		t.Errorf("missing pod is %+v, want an inferred tombstone with the list's version", r)
	}
	var keys []string
	for _, r := range m.kinds(delta.KindDelta) {
		keys = append(keys, string(r.Key)+"@"+r.RV)
	}
	slices.Sort(keys)
	if want := "[default/changed@15 default/changed@3 default/gone@2 default/gone@20 default/new@16 default/same@1]"; fmt.Sprint(keys) != want {
		t.Errorf("published %v, want each difference once: %s", keys, want)
	}
}

func TestASlowLogDoesNotHoldAListOpen(t *testing.T) {
	t.Parallel()
	const count, size = 2000, 10_000
	a := newAPI(t)
	nats := embeddedtest.NATS(t).URL()
	v := newValve(t, nats)
	var took atomic.Int64
	pad := strings.Repeat("x", size)
	a.onPage = func(_ int, w *wire) bool {
		v.shut() // nothing reaches the log until the API server is rid of its answer
		defer v.open()
		began := time.Now()
		w.send(listHead)
		for i := range count {
			sep := ","
			if i == count-1 {
				sep = "]}"
			}
			_, _ = fmt.Fprintf(w.w, `{"metadata":{"name":"p%d","namespace":"default","uid":"u","resourceVersion":"7"},"x":%q}%s`, i, pad, sep)
		}
		w.send()
		took.Store(int64(time.Since(began)))
		return true
	}
	cfg := quick()
	cfg.LeaseTTL = 5 * time.Minute // the log is slow, not gone
	cfg.StageBytes = 256 << 10
	start(t, cfg, a.URL, "nats://"+v.addr)
	m := follow(t, nats, pods)
	m.until(t, "all pods", func() bool { return m.revision().RV == "20" && len(m.live()) == count })
	if n := len(a.requests(false)); n != 1 || time.Duration(took.Load()) > 30*time.Second {
		t.Errorf("%d lists, the first was open for %v; want one the log did not hold up", n, time.Duration(took.Load()))
	}
	if _, ok := m.get(delta.Key("default/p" + strconv.Itoa(count-1))); !ok {
		t.Error("the last pod is missing")
	}
}
