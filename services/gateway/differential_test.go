package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// requests is how many random reads the differential test compares; DELTAPLANE_REQUESTS is for long
// runs.
func requests(t *testing.T, least int) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("DELTAPLANE_REQUESTS"))
	if err != nil || n < least {
		return least
	}
	return n
}

func TestRandomReadsAreThoseOfTheAPIServer(t *testing.T) {
	t.Parallel()
	differ(t, onDevCluster(t, nil), requests(t, 400))
}

func TestRealRandomReadsAreThoseOfTheAPIServer(t *testing.T) {
	t.Parallel()
	differ(t, onRealServer(t, nil), requests(t, 10_000))
}

// readersAtOnce read at the same time: watches wait for most of theirs.
const readersAtOnce = 16

// world is objects that change while they are read.
type world struct {
	*rig
	ns    [3]string
	acked atomic.Uint64 // the highest version of a write that was answered
	kept  []string      // continue tokens to go on with
}

func differ(t *testing.T, r *rig, n int) {
	t.Helper()
	r.mirrored("/api/v1/configmaps", "/api/v1/pods")
	w := &world{rig: r}
	base := fmt.Sprintf("diff-%d", time.Now().UnixNano()%1e9)
	for i, end := range []string{"", "-1", "-1-0"} { // each is behind the next in etcd's order
		w.ns[i] = base + end
		w.must(http.MethodPost, r.direct, "/api/v1/namespaces", fmt.Sprintf(`{"metadata":{"name":%q}}`, w.ns[i]))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for i := range 2 {
		writers.Go(func() { w.write(ctx, rand.New(rand.NewPCG(uint64(i), 1))) }) //nolint:gosec // a test's seed
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var readers sync.WaitGroup
	for i := range readersAtOnce {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // a test's seed
			one := &world{rig: r, ns: w.ns}
			for range n / readersAtOnce {
				if t.Failed() {
					return
				}
				one.acked.Store(w.acked.Load())
				one.read(rng)
			}
		})
	}
	readers.Wait()
	cancel()
	writers.Wait()
	counts := r.gather()
	t.Logf("%v", counts)
	for _, verb := range []string{"list", "watch"} {
		if counts[verb+" index "] == 0 {
			t.Errorf("no %s was answered from the index", verb)
		}
	}
}

// write changes objects until ctx ends, through the gateway and beside it.
func (w *world) write(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		base := w.direct
		if rng.IntN(2) == 0 {
			base = w.url
		}
		ns, name := w.ns[rng.IntN(len(w.ns))], fmt.Sprintf("cm-%02d", rng.IntN(12))
		path := "/api/v1/namespaces/" + ns + "/configmaps"
		var body []byte
		var code int
		switch rng.IntN(4) {
		case 0:
			code, body = w.send(http.MethodDelete, base, path+"/"+name, "", "")
		case 1:
			code, body = w.send(http.MethodPatch, base, path+"/"+name, fmt.Sprintf(`{"metadata":{"labels":{"color":%q}}}`, colors[rng.IntN(len(colors))]), "application/merge-patch+json")
		case 2:
			code, body = w.send(http.MethodPatch, base, path+"/"+name, fmt.Sprintf(`{"data":{"v":"%d"}}`, rng.IntN(1000)), "application/merge-patch+json")
		default:
			code, body = w.send(http.MethodPost, base, path, fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"color":%q}},"data":{"v":"<&>\u00e4"}}`, name, colors[rng.IntN(len(colors))]), "application/json")
		}
		var o struct {
			Metadata struct{ ResourceVersion string }
		}
		if code < 300 && json.Unmarshal(body, &o) == nil {
			if rv, err := strconv.ParseUint(o.Metadata.ResourceVersion, 10, 64); err == nil && rv > w.acked.Load() {
				w.acked.Store(rv) // two writers may undo each other's: the bound is only lower then
			}
		}
		time.Sleep(time.Duration(rng.IntN(8)) * time.Millisecond)
	}
}

var colors = []string{"red", "green", "blue"}

func (w *world) send(method, base, path, body, contentType string) (int, []byte) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(w.t.Context()), method, base+path, strings.NewReader(body))
	if err != nil {
		w.t.Error(err)
		return 0, nil
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	hc := w.api
	if base == w.url {
		hc = w.client
	}
	resp, err := hc.Do(req)
	if err != nil {
		w.t.Error(err)
		return 0, nil
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Error(err)
	}
	return resp.StatusCode, raw
}

func (w *world) must(method, base, path, body string) {
	w.t.Helper()
	if code, raw := w.send(method, base, path, body, "application/json"); code >= 300 {
		w.t.Fatalf("%s %s: %d %s", method, path, code, raw)
	}
}

// read makes a random read, and compares it.
func (w *world) read(rng *rand.Rand) {
	path, q := "/api/v1/configmaps", url.Values{}
	if rng.IntN(4) > 0 {
		path = "/api/v1/namespaces/" + w.ns[rng.IntN(len(w.ns))] + "/configmaps"
	}
	switch rng.IntN(5) {
	case 0:
		q.Set("labelSelector", "color="+colors[rng.IntN(len(colors))])
	case 1:
		q.Set("labelSelector", "color notin (red,blue)")
	case 2:
		q.Set("fieldSelector", fmt.Sprintf("metadata.name=cm-%02d", rng.IntN(12)))
	}
	switch n := rng.IntN(10); {
	case n < 5:
		w.list(rng, path, q)
	case n < 7:
		w.watch(rng, path, q)
	default:
		w.bad(rng, path, q)
	}
}

type list struct {
	Kind, APIVersion string
	Metadata         struct {
		ResourceVersion, Continue string
		RemainingItemCount        *int64
	}
	Items []any
}

func (w *world) list(rng *rand.Rand, path string, q url.Values) {
	acked := w.acked.Load()
	recent := false
	if len(w.kept) > 0 && rng.IntN(3) == 0 {
		var query string
		path, query, _ = strings.Cut(w.kept[0], "?")
		w.kept = w.kept[1:]
		q, _ = url.ParseQuery(query)
	} else {
		switch rng.IntN(3) {
		case 0:
			q.Set("resourceVersion", "0")
		case 1:
			q.Set("resourceVersion", strconv.FormatUint(acked, 10))
			q.Set("resourceVersionMatch", "NotOlderThan")
		default:
			recent = true
		}
		if rng.IntN(2) == 0 {
			q.Set("limit", strconv.Itoa(1+rng.IntN(5)))
		}
	}
	code, got := w.send(http.MethodGet, w.url, path+"?"+q.Encode(), "", "")
	if code != http.StatusOK {
		w.t.Errorf("%s?%s: %d %.200s", path, q.Encode(), code, got)
		return
	}
	var mine, theirs list
	if err := json.Unmarshal(got, &mine); err != nil {
		w.t.Errorf("%s?%s: %v", path, q.Encode(), err)
		return
	}
	if rv, _ := strconv.ParseUint(mine.Metadata.ResourceVersion, 10, 64); rv < acked && (recent || q.Get("resourceVersionMatch") != "") {
		w.t.Errorf("%s?%s: resource version %d, after %d was acknowledged", path, q.Encode(), rv, acked)
	}
	if c := mine.Metadata.Continue; c != "" {
		next := url.Values{"continue": {c}, "limit": {q.Get("limit")}}
		for _, name := range []string{"labelSelector", "fieldSelector"} {
			if q.Has(name) {
				next.Set(name, q.Get(name))
			}
		}
		w.kept = append(w.kept, path+"?"+next.Encode())
	}
	exact := maps.Clone(q)
	if !exact.Has("continue") {
		exact.Set("resourceVersion", mine.Metadata.ResourceVersion)
		exact.Set("resourceVersionMatch", "Exact")
		if q.Get("resourceVersion") == "0" {
			exact.Del("limit") // which the API server passes over as well
		}
	}
	code, want := w.send(http.MethodGet, w.direct, path+"?"+exact.Encode(), "", "")
	if code != http.StatusOK {
		w.t.Errorf("direct %s?%s: %d %.200s", path, exact.Encode(), code, want)
		return
	}
	if err := json.Unmarshal(want, &theirs); err != nil {
		w.t.Error(err)
		return
	}
	mine.Metadata.Continue, theirs.Metadata.Continue = start(mine.Metadata.Continue), start(theirs.Metadata.Continue)
	if !reflect.DeepEqual(mine, theirs) {
		w.t.Errorf("%s?%s\n gateway %.1500s\n direct  %.1500s", path, q.Encode(), got, want)
	}
}

// start is what a continue token says. An API server writes it with a slash in front where it
// answers from its cache, and reads both.
func start(token string) string {
	b, _ := base64.RawURLEncoding.DecodeString(token)
	return strings.Replace(string(b), `"start":"/`, `"start":"`, 1)
}

type event struct {
	Type   string
	Object map[string]any
}

func (e event) key() string {
	metadata, _ := e.Object["metadata"].(map[string]any)
	return fmt.Sprint(metadata["namespace"], "/", metadata["name"])
}

func (e event) uid() any {
	metadata, _ := e.Object["metadata"].(map[string]any)
	return metadata["uid"]
}

func (e event) version() uint64 {
	metadata, _ := e.Object["metadata"].(map[string]any)
	text, _ := metadata["resourceVersion"].(string)
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}

// watch watches at both from one version, and compares the events up to the last that both have.
func (w *world) watch(rng *rand.Rand, path string, q url.Values) {
	q.Set("watch", "1")
	q.Set("timeoutSeconds", "1")
	if rng.IntN(2) == 0 {
		_, raw := w.send(http.MethodGet, w.url, path+"?resourceVersion=0&limit=1", "", "")
		var l list
		_ = json.Unmarshal(raw, &l)
		q.Set("resourceVersion", l.Metadata.ResourceVersion)
	} else {
		back := uint64(rng.IntN(200))
		q.Set("resourceVersion", strconv.FormatUint(w.acked.Load()-min(back, w.acked.Load()-1), 10))
	}
	if rng.IntN(2) == 0 {
		q.Set("allowWatchBookmarks", "true")
	}
	var mine, theirs []event
	var both sync.WaitGroup
	both.Go(func() { mine = w.stream(w.url, path+"?"+q.Encode()) })
	both.Go(func() { theirs = w.stream(w.direct, path+"?"+q.Encode()) })
	both.Wait()
	if len(mine) == 0 || len(theirs) == 0 {
		return
	}
	last := min(mine[len(mine)-1].version(), theirs[len(theirs)-1].version())
	later := map[string]bool{} // of whose changes some may be folded into one behind the last
	for _, e := range mine {
		if e.version() > last {
			later[e.key()] = true
		}
	}
	mine, theirs = upTo(mine, last), upTo(theirs, last)
	if what := folded(mine, theirs, later); what != "" {
		a, _ := json.Marshal(mine)
		b, _ := json.Marshal(theirs)
		w.t.Errorf("%s?%s: %s\n gateway %s\n direct  %s", path, q.Encode(), what, a, b)
	}
}

// folded says how events are not those of the API server, or such in which changes of one object
// that quickly follow each other are one. A creation that is folded has the object of a later
// change, and an object that came back at once is deleted at the version before.
func folded(mine, theirs []event, later map[string]bool) string {
	type place struct {
		key string
		rv  uint64
	}
	known, last, lastOf := map[place]event{}, map[string]event{}, map[string]event{}
	for _, e := range theirs {
		known[place{e.key(), e.version()}] = e
		last[e.key()] = e
	}
	before := uint64(0)
	for _, e := range mine {
		if e.version() < before {
			return fmt.Sprintf("version %d comes behind %d", e.version(), before)
		}
		before = e.version()
		was, has := lastOf[e.key()]
		lastOf[e.key()] = e
		if e.Type == "ADDED" && has && was.Type != "DELETED" {
			return fmt.Sprintf("%s is added twice, at %d", e.key(), e.version())
		}
		if e.Type == "MODIFIED" && has && was.Type == "DELETED" {
			return fmt.Sprintf("%s is modified after its deletion, at %d", e.key(), e.version())
		}
		o, ok := known[place{e.key(), e.version()}]
		switch {
		case ok && (e.Type == "DELETED") != (o.Type == "DELETED"):
			return fmt.Sprintf("%s at %d is %s, not %s", e.key(), e.version(), e.Type, o.Type)
		// What has left the selection is shown as it was before, which may be folded.
		case ok && !reflect.DeepEqual(e.Object, o.Object) && (e.Type != "DELETED" || e.uid() != o.uid()):
			return fmt.Sprintf("%s at %d is another object", e.key(), e.version())
		case !ok && e.Type != "DELETED": // of one that came back
			return fmt.Sprintf("%s has no version %d", e.key(), e.version())
		}
	}
	for key, e := range last {
		switch m, ok := lastOf[key]; {
		case later[key] && (!ok || m.version() < e.version()):
		case !ok && (e.Type != "DELETED" || !within(theirs, key)):
			return fmt.Sprintf("%s at %d of %s is missing", e.Type, e.version(), key)
		// A whole life may be between them, and an object in whose place another one is that is not
		// selected is deleted at the version before that.
		case ok && m.Type == "DELETED" && e.Type == "DELETED":
		case ok && m.version() != e.version():
			return fmt.Sprintf("the last event of %s is %s at %d, not %s at %d", key, m.Type, m.version(), e.Type, e.version())
		}
	}
	return ""
}

// within reports whether an object was both created and deleted by the events: such may fold to
// nothing.
func within(events []event, key string) bool {
	for _, e := range events {
		if e.key() == key {
			return e.Type == "ADDED"
		}
	}
	return false
}

func upTo(events []event, last uint64) (out []event) {
	for _, e := range events {
		if e.version() <= last && e.Type != "BOOKMARK" {
			out = append(out, e)
		}
	}
	return out
}

func (w *world) stream(base, path string) (events []event) {
	code, raw := w.send(http.MethodGet, base, path, "", "")
	if code != http.StatusOK {
		w.t.Errorf("%s%s: %d %.200s", base, path, code, raw)
		return nil
	}
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			w.t.Errorf("%s%s: %v: %.200s", base, path, err, lines.Bytes())
			return nil
		}
		events = append(events, e)
	}
	return events
}

// bad makes a request that may be wrong, or is unusual, and compares the answers.
func (w *world) bad(rng *rand.Rand, path string, q url.Values) {
	one := odd[rng.IntN(len(odd))]
	if i := strings.Index(one, "="); i > 0 {
		q.Set(one[:i], one[i+1:])
	} else {
		path += one
	}
	if q.Has("watch") {
		q.Set("timeoutSeconds", "1")
	}
	codeA, a := w.send(http.MethodGet, w.url, path+"?"+q.Encode(), "", "")
	codeB, b := w.send(http.MethodGet, w.direct, path+"?"+q.Encode(), "", "")
	if codeA != codeB {
		w.t.Errorf("%s?%s: gateway %d %.300s, direct %d %.300s", path, q.Encode(), codeA, a, codeB, b)
	}
	if codeA >= 400 && !bytes.Equal(a, b) {
		w.t.Errorf("%s?%s: gateway %.500s, direct %.500s", path, q.Encode(), a, b)
	}
}

// odd are parameters, and ends of paths, that are wrong or unusual.
var odd = []string{
	"limit=-1", "limit=x", "limit=0", "limit=99999999999999999999", "continue=x", "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi8ifQ",
	"continue=eyJ2IjoieCIsInJ2IjoxLCJzdGFydCI6ImEifQ", "resourceVersion=x", "resourceVersion=-1", "resourceVersion=01", "resourceVersion=1.5",
	"resourceVersionMatch=Exact", "resourceVersionMatch=NotOlderThan", "resourceVersionMatch=Other", "labelSelector=a==", "labelSelector=a in (", "labelSelector=!",
	"fieldSelector=spec.nothing=x", "fieldSelector=metadata.name", "fieldSelector=metadata.namespace!=x", "fieldSelector=metadata.name=a,metadata.name=b",
	"watch=x", "watch=", "sendInitialEvents=true", "sendInitialEvents=x", "allowWatchBookmarks=x", "timeoutSeconds=x", "timeoutSeconds=-1", "unknown=1", "pretty=true", "pretty=x",
	"/", "/nothing", "/cm-01/status", "/cm-01/nothing", "//", "/..", "/cm%2f01", "/cm-01/a/b/c", "/%00",
}
