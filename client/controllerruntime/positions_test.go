package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/services/indexer/servetest"
)

// mirrored is a transport on an index whose log the test writes.
type mirrored struct {
	t *testing.T
	w *stream.Writer
	*transport
}

func newMirrored(t *testing.T) *mirrored {
	t.Helper()
	conn := servetest.Log(t)
	addr, _ := servetest.Serve(t, conn, nil)
	index, err := client.Dial(addr, client.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { index.Close() })
	op, err := New(index, nil, Options{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	w, err := conn.Writer(t.Context(), delta.Collection{Cluster: "dev", Version: "v1", Resource: "configmaps"}, stream.WriterConfig{Term: 1, Holder: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, meta.RESTScopeNamespace)
	m := &mirrored{t, w, &transport{op: op, mapper: mapper, next: http.DefaultTransport, at: map[string]client.Position{}}}
	eventually(t, "the index follows the log", func() bool {
		name, err := op.collection(t.Context(), schema.GroupVersionResource{Version: "v1", Resource: "configmaps"})
		return err == nil && name != ""
	})
	return m
}

func (m *mirrored) write(records ...delta.Record) {
	m.t.Helper()
	if err := errors.Join(m.w.Append(m.t.Context(), records), m.w.Flush(m.t.Context())); err != nil {
		m.t.Fatal(err)
	}
}

func (m *mirrored) put(name string, version int) {
	m.t.Helper()
	rv := strconv.Itoa(version)
	payload := []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"ns","name":"` + name + `","uid":"` + name + `","resourceVersion":"` + rv + `"}}`)
	m.write(delta.Record{Kind: delta.KindDelta, Type: delta.Updated, Key: delta.Key("ns/" + name), UID: name, RV: rv, Watermark: rv, Encoding: delta.EncodingJSON, Payload: payload, Hash: delta.Hash(payload)})
}

// infer writes a deletion that a list at a version has found.
func (m *mirrored) infer(name string, version int) {
	m.t.Helper()
	rv := strconv.Itoa(version)
	m.write(delta.Record{Kind: delta.KindDelta, Type: delta.Deleted, DeleteReason: delta.Inferred, Key: delta.Key("ns/" + name), RV: rv, Watermark: rv})
}

func (m *mirrored) synced(version int) {
	m.t.Helper()
	m.write(delta.Record{Kind: delta.KindSynced, RV: strconv.Itoa(version), Watermark: strconv.Itoa(version)})
}

// listWatcher lists and watches as client-go's reflector does where WatchList is off.
type listWatcher struct {
	m       *mirrored
	version string
	last    string // event
}

func (m *mirrored) get(query string) *http.Response {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	m.t.Cleanup(cancel)
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/configmaps"+query, nil)
	resp, err := m.RoundTrip(r)
	if err != nil {
		m.t.Fatal(err)
	}
	return resp
}

func (m *mirrored) list() *listWatcher {
	m.t.Helper()
	resp := m.get("")
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		m.t.Fatalf("list: %d, %s, %v", resp.StatusCode, text, err)
	}
	return &listWatcher{m: m, version: versionIn(string(text))}
}

func versionIn(text string) string {
	_, rest, _ := strings.Cut(text, `"resourceVersion":"`)
	version, _, _ := strings.Cut(rest, `"`)
	return version
}

// watch goes on until an event has what is looked for, and returns the events by then; bookmarks
// are left out.
func (l *listWatcher) watch(until string) (events []string, code int) {
	l.m.t.Helper()
	resp := l.m.get("?watch=true&resourceVersion=" + l.version)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, resp.StatusCode
	}
	var text strings.Builder
	part := make([]byte, 1)
	for {
		if _, err := resp.Body.Read(part); err != nil {
			l.m.t.Fatalf("the watch at %s ends with %v behind %v", l.version, err, events)
		}
		if part[0] != '\n' {
			text.WriteByte(part[0])
			continue
		}
		event := text.String()
		text.Reset()
		if strings.Contains(event, `"type":"ERROR"`) {
			return append(events, "ERROR"), http.StatusOK
		}
		l.version = versionIn(event)
		if !strings.Contains(event, `"type":"BOOKMARK"`) {
			_, of, _ := strings.Cut(event, `"type":"`)
			what, _, _ := strings.Cut(of, `"`)
			_, of, _ = strings.Cut(event, `"name":"`)
			name, _, _ := strings.Cut(of, `"`)
			events = append(events, fmt.Sprintf("%s %s %s", what, name, l.version))
			event = events[len(events)-1]
		}
		if strings.Contains(event, until) {
			return events, http.StatusOK
		}
	}
}

// A list has found two deletions, which have its version. One of two identical informers has both,
// whenever its watch ends.
func TestIdenticalInformersLeaveNoHoleForEachOther(t *testing.T) {
	for _, order := range []string{"the one behind ends first", "the one behind ends last"} {
		t.Run(order, func(t *testing.T) {
			m := newMirrored(t)
			for n, name := range []string{"a", "b", "c"} {
				m.put(name, n+1)
			}
			m.synced(10)
			behind, ahead := m.list(), m.list()
			expect := func(l *listWatcher, until string, want ...string) {
				t.Helper()
				if got, code := l.watch(until); strings.Join(got, ", ") != strings.Join(want, ", ") {
					t.Errorf("the watch has %d, %v, want %v", code, got, want)
				}
			}
			const a, b = "DELETED a 20", "DELETED b 20"
			m.infer("a", 20)
			if order == "the one behind ends first" {
				expect(behind, a, a)
				m.infer("b", 20)
				expect(ahead, b, a, b)
			} else {
				resp := m.get("?watch=true&resourceVersion=10")
				m.infer("b", 20)
				expect(ahead, b, a, b)
				readUntil(t, resp, `"DELETED"`)
				behind.version = "20"
				resp.Body.Close()
			}
			m.put("c", 30)
			got, _ := behind.watch(" c 30")
			if !strings.Contains(strings.Join(got, ", "), b) {
				t.Errorf("the informer that was behind has %v: %s is missing", got, b)
			}
		})
	}
}

// readUntil reads a stream up to the end of a line that has what is looked for.
func readUntil(t *testing.T, resp *http.Response, what string) {
	t.Helper()
	var text strings.Builder
	part := make([]byte, 1)
	for !strings.Contains(text.String(), what) || part[0] != '\n' {
		if _, err := resp.Body.Read(part); err != nil {
			t.Fatal(err)
		}
		text.WriteByte(part[0])
	}
}

// A position at a version is one of a history that nobody has any more, and the list that follows
// is at the same version.
func TestAListBehindALostHistoryLeadsToAWatchThatGoesOn(t *testing.T) {
	m := newMirrored(t)
	m.put("a", 1)
	m.synced(10)
	l := m.list()
	m.keep(request{collection: "dev/configmaps.v1"}, "10", client.Position{ToldEpoch: 1, ToldSequence: 1})
	if got, code := l.watch("a"); len(got) != 1 || got[0] != "ERROR" {
		t.Fatalf("a watch behind a lost history has %d, %v", code, got)
	}
	l = m.list()
	if l.version != "10" {
		t.Fatalf("the list is at %s", l.version)
	}
	m.put("a", 20)
	if got, code := l.watch("a 20"); len(got) != 1 || got[0] != "MODIFIED a 20" {
		t.Errorf("the watch behind the list has %d, %v", code, got)
	}
}

func TestTwoWatchesGoOnAtTheFirstOfTheirPositions(t *testing.T) {
	at := func(epoch, sequence uint64) client.Position { return client.Position{Epoch: epoch, Sequence: sequence} }
	told := func(p client.Position, epoch, sequence uint64) client.Position {
		p.ToldEpoch, p.ToldSequence = epoch, sequence
		return p
	}
	nowhere := told(client.Position{}, 1, 9)
	for _, c := range []struct{ a, b, want client.Position }{
		{at(1, 5), at(1, 5), at(1, 5)},
		{at(1, 5), at(1, 7), told(at(1, 5), 1, 7)},
		{at(1, 5), told(at(1, 7), 1, 9), told(at(1, 5), 1, 9)},
		{told(at(1, 5), 1, 9), at(1, 7), told(at(1, 5), 1, 9)},
		{at(1, 50), at(2, 7), at(2, 7)},
		{at(1, 5), nowhere, nowhere},
	} {
		for _, got := range []client.Position{first(c.a, c.b), first(c.b, c.a)} {
			if got != c.want {
				t.Errorf("of %+v and %+v it is %+v, want %+v", c.a, c.b, got, c.want)
			}
		}
	}
}
