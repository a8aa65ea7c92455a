package logs

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/kube"
)

func smallHistory(t *testing.T, managed bool) *history {
	t.Helper()
	h, err := writeHistory(filepath.Join(t.TempDir(), "pods"), 1, 60, 20, managed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.close() })
	return h
}

var podResource = kube.Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}

// taken is what a reflector makes of an object.
func taken(t *testing.T, raw []byte) delta.Object {
	t.Helper()
	o, err := (&kube.Transform{}).Normalize(raw, podResource)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestAHistoryTellsWhatItsEventsCameTo(t *testing.T) {
	t.Parallel()
	for _, managed := range []bool{false, true} {
		h := smallHistory(t, managed)
		state, uids, births := map[delta.Key]system.ObjectState{}, map[delta.Key]string{}, 0
		put := func(x incarnation) {
			text, err := h.body(x, nil)
			if err != nil {
				t.Fatal(err)
			}
			o := taken(t, text)
			if o.RV != strconv.Itoa(x.rv) || o.Key != h.pods[x.pod].key {
				t.Fatalf("%+v has key %s and version %s", x, o.Key, o.RV)
			}
			if x.kind == kube.EventDeleted {
				delete(state, o.Key)
				return
			}
			if _, alive := state[o.Key]; alive == (x.kind == kube.EventAdded) {
				t.Fatalf("%+v of an object that lives: %v", x, alive)
			}
			if alive := x.kind == kube.EventModified; alive && uids[o.Key] != o.UID {
				t.Fatalf("%+v changes the UID of a living object", x)
			} else if !alive && uids[o.Key] == o.UID {
				t.Fatalf("%+v is created with the UID it had", x)
			}
			if x.birth > 0 && x.kind == kube.EventAdded {
				births++
			}
			state[o.Key], uids[o.Key] = system.ObjectState{RV: o.RV, Hash: o.Hash}, o.UID
		}
		for i := range h.pods {
			x, _ := h.state(i, 0)
			put(x)
		}
		for events := range 60 * 8 {
			if events%37 == 0 {
				if got, err := h.hash(events); err != nil || got != system.HashOf(state) {
					t.Fatalf("managed fields %v, after %d events the hash is %s, %v, want %s", managed, events, got, err, system.HashOf(state))
				}
			}
			put(h.event(events))
		}
		if births == 0 {
			t.Error("nothing was recreated")
		}
	}
}

// startTestScript serves a history and returns its server and a client of it.
func startTestScript(t *testing.T, streams bool) (*script, *kube.Client, string) {
	t.Helper()
	s := &script{history: smallHistory(t, true), streams: streams, moved: make(chan struct{})}
	srv := httptest.NewServer(s.mux())
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	client, err := kube.Load(kube.Config{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return s, client, srv.URL
}

func TestAScriptedServersPagesAreOneStateAndItsWatchGoesOnFromIt(t *testing.T) {
	t.Parallel()
	s, client, _ := startTestScript(t, false)
	s.play(t.Context(), 1e6, 100, false)
	state := map[delta.Key]system.ObjectState{}
	opts := kube.ListOptions{Limit: 7}
	rv := ""
	for {
		page, err := client.List(t.Context(), podResource, opts)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range page.Items {
			o := taken(t, item)
			state[o.Key] = system.ObjectState{RV: o.RV, Hash: o.Hash}
		}
		if rv = page.RV; page.Continue == "" {
			break
		}
		opts.Continue = page.Continue
		s.play(t.Context(), 1e6, 3, false) // while the list goes on
	}
	if want, err := s.hash(100); err != nil || system.HashOf(state) != want || rv != strconv.Itoa(s.rv(100)) {
		t.Fatalf("pages at %s have hash %s, want %s, %v", rv, system.HashOf(state), want, err)
	}
	w, err := client.Watch(t.Context(), podResource, kube.WatchOptions{RV: rv})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	end := int(s.done.Load()) + 80
	go s.play(t.Context(), 1e4, 80, false)
	for n := 100; n < end; n++ {
		ev, err := w.Next()
		if err != nil {
			t.Fatal(err)
		}
		o := taken(t, ev.Object)
		if o.RV != strconv.Itoa(s.rv(n+1)) {
			t.Fatalf("event %d has version %s, want %d", n, o.RV, s.rv(n+1))
		}
		if state[o.Key] = (system.ObjectState{RV: o.RV, Hash: o.Hash}); ev.Type == kube.EventDeleted {
			delete(state, o.Key)
		}
	}
	if want, err := s.hash(end); err != nil || system.HashOf(state) != want {
		t.Errorf("list and watch come to %s, want %s, %v", system.HashOf(state), want, err)
	}
	if got := s.count(func(*asked) {}); got.Lists != 1 || got.Watches != 1 || got.Pages < 5 {
		t.Errorf("it counted %+v, want one list of pages and one watch", got)
	}
}

func TestAScriptedServerSendsInitialStatesOnlyWhenItStreams(t *testing.T) {
	t.Parallel()
	const query = "/api/v1/pods?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"
	get := func(url string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+query, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	old, _, url := startTestScript(t, false)
	if resp := get(url); resp.StatusCode != http.StatusUnprocessableEntity || old.count(func(*asked) {}).Refused != 1 {
		t.Errorf("status %d, want it refused", resp.StatusCode)
	}
	s, _, url := startTestScript(t, true)
	s.play(t.Context(), 1e6, 70, false)
	state, ended := map[delta.Key]system.ObjectState{}, false
	lines := bufio.NewScanner(get(url).Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var ev struct {
			Type   string
			Object json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &ev); err != nil {
			t.Fatal(err)
		}
		if ev.Type == kube.EventBookmark {
			ended = strings.Contains(string(ev.Object), `"k8s.io/initial-events-end":"true"`)
			break
		}
		o := taken(t, ev.Object)
		state[o.Key] = system.ObjectState{RV: o.RV, Hash: o.Hash}
	}
	if want, err := s.hash(70); err != nil || !ended || system.HashOf(state) != want {
		t.Errorf("ended by a bookmark %v, hash %s, want %s, %v, %v", ended, system.HashOf(state), want, err, lines.Err())
	}
}

func TestAnAuditSeesOldTermsGapsAndDamage(t *testing.T) {
	t.Parallel()
	change := func(seq, term uint64, key string, rv, watermark int) delta.Record {
		body := []byte(key + strconv.Itoa(rv))
		return delta.Record{
			Kind: delta.KindDelta, Type: delta.Updated, Key: delta.Key(key), RV: strconv.Itoa(rv), Watermark: strconv.Itoa(watermark),
			Epoch: 1, Term: term, Sequence: seq, Payload: body, Hash: delta.Hash(body),
		}
	}
	begin := []delta.Record{
		{Kind: delta.KindTerm, Epoch: 1, Term: 1, Sequence: 1, Writer: "one"},
		change(2, 1, "a", 8, 0), change(3, 1, "b", 9, 0),
		{Kind: delta.KindSynced, Epoch: 1, Term: 1, Sequence: 4, RV: "10", Watermark: "10"},
	}
	for name, c := range map[string]struct {
		more []delta.Record
		want faults
	}{
		"in order": {[]delta.Record{change(5, 1, "a", 11, 11), change(6, 1, "b", 12, 12)}, faults{Terms: 1, Deltas: 4}},
		"a gap":    {[]delta.Record{change(5, 1, "b", 12, 12)}, faults{Terms: 1, Deltas: 3, Gaps: 1}},
		"an old term": {
			[]delta.Record{{Kind: delta.KindTerm, Epoch: 1, Term: 3, Sequence: 5, Writer: "two", Watermark: "10"}, change(6, 1, "a", 11, 11)},
			faults{Terms: 2, Deltas: 3, OldTerm: 1},
		},
		"an older version": {[]delta.Record{change(5, 1, "b", 7, 10)}, faults{Terms: 1, Deltas: 3, Back: 1}},
		"damage": {[]delta.Record{func() delta.Record {
			r := change(5, 1, "a", 11, 11)
			r.Payload = []byte("something else")
			return r
		}()}, faults{Terms: 1, Deltas: 3, Damaged: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAudit([]string{"a", "b"}, 10)
			a.apply(delta.Batch{Reset: true})
			a.apply(delta.Batch{Records: begin, Replayed: true, Next: 5})
			last := c.more[len(c.more)-1].Sequence
			a.apply(delta.Batch{Records: c.more, Next: last + 1})
			c.want.Resets = 1
			if a.Faults != c.want {
				t.Errorf("it found %+v, want %+v", a.Faults, c.want)
			}
		})
	}
}

func TestAReflectorsLogHoldsWhatTheScriptedSourceHas(t *testing.T) {
	t.Parallel()
	nats, err := embedded.StartNATS(embedded.NATSConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer nats.Stop()
	s, _, url := startTestScript(t, true)
	var keys []string
	for i := range s.pods {
		keys = append(keys, string(s.pods[i].key))
	}
	config, err := json.Marshal(readerConfig{NATS: nats.URL(), Count: 2, Keys: keys, First: s.first()})
	if err != nil {
		t.Fatal(err)
	}
	readers, err := ReaderServer(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = readers.Stop() }()
	_, stop, err := system.StartReflector(t.Context(), system.ReflectorConfig{NATS: nats.URL(), URL: url, Holder: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	call := func(name string, args any) any {
		t.Helper()
		text, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readers.Ops[name](t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	call("await", s.rv(0))
	call("expect", expectArgs{First: s.rv(0) + 1, Count: 50})
	stamps := s.play(t.Context(), 1000, 50, true)
	seen, _ := call("arrivals", nil).(arrivedAt)
	if p50, p99 := harness.Latencies(stamps, seen.Arrived); p50 <= 0 || p99 < p50 {
		t.Errorf("p50 %v ms, p99 %v ms", p50, p99)
	}
	call("await", s.rv(50))
	want, err := s.hash(50)
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range call("hashes", nil).([]string) {
		if got != want {
			t.Errorf("consumer %d has %s, want %s", i, got, want)
		}
	}
	log, err := foldLog(t.Context(), nats.URL())
	if err != nil || system.HashOf(log.state) != want || log.versions() != s.versions(50) {
		t.Errorf("the log holds %s, want %s, %v", system.HashOf(log.state), want, err)
	}
}

func TestAThrottlePassesEverythingAtItsRate(t *testing.T) {
	t.Parallel()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	go func() { // an echo of one connection
		c, err := lis.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(c, c)
		_ = c.Close()
	}()
	th, err := newThrottle(context.Background(), "nats://"+lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", th.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	text := strings.Repeat("0123456789abcdef", 16<<10/16)
	pass := func() time.Duration {
		t.Helper()
		began := time.Now()
		go func() { _, _ = io.WriteString(c, text) }()
		got := make([]byte, len(text))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
			t.Fatalf("read %d bytes, %v, want what was written", len(got), err)
		}
		return time.Since(began)
	}
	pass()
	th.setLimit(80 << 10)
	if took := pass(); took < 140*time.Millisecond { // 16 KiB, the first 4 at once
		t.Errorf("16 KiB at 80 KiB/s took %v", took)
	}
	th.setLimit(0)
	pass()
	if err := th.close(); err != nil {
		t.Error(err)
	}
	if n := th.passed.Load(); n != int64(3*len(text)) {
		t.Errorf("%d bytes passed, want %d", n, 3*len(text))
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection outlives the throttle")
	}
}

func TestLatenciesLeaveOutWhatWasNotSeen(t *testing.T) {
	t.Parallel()
	at := []int64{0, 100, 200, 300}
	if p50, p99 := harness.Latencies(at, []int64{5, 100 + 2e6, 0, 300 + 4e6}); p50 != 2 || p99 != 4 {
		t.Errorf("p50 %v, p99 %v, want 2 and 4", p50, p99)
	}
	if p50, p99 := harness.Latencies(nil, nil); p50 != 0 || p99 != 0 {
		t.Errorf("p50 %v, p99 %v of nothing", p50, p99)
	}
}
