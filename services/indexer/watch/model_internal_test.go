package watch

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/define"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
)

// truth is an object of the source.
type truth struct {
	rv, app, node string
}

// logHistory is a source and the log it is written to, of which only the newest
// record of each subject is kept.
type logHistory struct {
	*rand.Rand
	source           map[string]truth
	all, log         []delta.Record // ever written, and of those the newest of each subject
	life             int            // grows when the log is recreated or cut back
	cut              uint64
	seq, epoch, term uint64
	epochs           uint64
	rv               int
	listed           bool // the epoch's list is complete
	over             bool // nothing happens any more
}

const modelTTL = time.Minute

func (h *logHistory) append(r delta.Record) {
	h.seq++
	r.Sequence, r.Epoch, r.Term, r.PublishedAt = h.seq, h.epoch, h.term, time.Now()
	r.StoredAt = r.PublishedAt
	if h.listed || r.Kind == delta.KindSynced {
		r.Watermark = strconv.Itoa(h.rv)
	}
	h.log = slices.DeleteFunc(h.log, func(o delta.Record) bool { return o.Kind == r.Kind && o.Key == r.Key })
	h.log, h.all = append(h.log, r), append(h.all, r)
}

// restart begins an epoch; no two have the same.
func (h *logHistory) restart() {
	h.epochs++
	h.epoch, h.listed = h.epochs, false
}

// cutBack takes the end of the log back.
func (h *logHistory) cutBack(to uint64) {
	all := slices.DeleteFunc(h.all, func(r delta.Record) bool { return r.Sequence > to })
	h.all, h.log, h.cut, h.seq, h.life = nil, nil, to, to, h.life+1
	for _, r := range all {
		h.log = slices.DeleteFunc(h.log, func(o delta.Record) bool { return o.Kind == r.Kind && o.Key == r.Key })
		h.log, h.all = append(h.log, r), append(h.all, r)
	}
}

// expire drops tombstones past their time, as the log does.
func (h *logHistory) expire() {
	h.log = slices.DeleteFunc(h.log, func(o delta.Record) bool {
		return o.Kind == delta.KindDelta && o.Type == delta.Deleted && time.Since(o.PublishedAt) > modelTTL
	})
}

func (h *logHistory) upsert(key string, o truth) {
	h.append(delta.Record{
		Kind: delta.KindDelta, Type: delta.Updated, Key: delta.Key(key), UID: "u-" + key, RV: o.rv, Payload: o.payload(key),
	})
}

func (o truth) payload(key string) []byte {
	ns, name, _ := strings.Cut(key, "/")
	return fmt.Appendf(nil, `{"metadata":{"namespace":%q,"name":%q,"uid":"u-%s","resourceVersion":%q,"labels":{"app":%q}},"spec":{"nodeName":%q}}`,
		ns, name, key, o.rv, o.app, o.node)
}

func (h *logHistory) remove(key string, why delta.DeleteReason) {
	h.append(delta.Record{Kind: delta.KindDelta, Type: delta.Deleted, Key: delta.Key(key), UID: "u-" + key, RV: strconv.Itoa(h.rv), DeleteReason: why})
}

// relist publishes what differs from the log.
func (h *logHistory) relist() {
	had := map[string]delta.Record{}
	for _, r := range h.log {
		if r.Kind == delta.KindDelta {
			had[string(r.Key)] = r
		}
	}
	for _, key := range slices.Sorted(maps.Keys(h.source)) {
		if r, ok := had[key]; !ok || r.Type == delta.Deleted || !bytes.Equal(r.Payload, h.source[key].payload(key)) {
			h.upsert(key, h.source[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(had)) {
		if _, ok := h.source[key]; !ok && had[key].Type != delta.Deleted {
			h.remove(key, delta.Inferred)
		}
	}
	h.listed = true
	h.append(delta.Record{Kind: delta.KindSynced, RV: strconv.Itoa(h.rv)})
}

func (h *logHistory) lead() {
	h.term++
	h.append(delta.Record{Kind: delta.KindFence})
	h.append(delta.Record{Kind: delta.KindTerm, Start: h.seq + 1})
}

func (h *logHistory) change() {
	h.rv++
	key := fmt.Sprintf("n%d/p%d", h.IntN(3), h.IntN(6))
	if _, ok := h.source[key]; ok && h.IntN(3) == 0 {
		delete(h.source, key)
		h.remove(key, delta.Observed)
		return
	}
	h.source[key] = truth{rv: strconv.Itoa(h.rv), app: h.pick("web", "db"), node: h.pick("a", "b", "c")}
	h.upsert(key, h.source[key])
}

func (h *logHistory) pick(of ...string) string { return of[h.IntN(len(of))] }

// step does one thing that happens to logs.
func (h *logHistory) step() {
	switch h.IntN(40) {
	case 0:
		h.lead()
	case 1: // the log loses its end, and nobody who wrote it is left
		if h.seq > 30 && h.listed {
			h.cutBack(h.seq - 1 - uint64(h.IntN(12)))
			if h.all[len(h.all)-1].Epoch != h.epoch || !slices.ContainsFunc(h.log, func(r delta.Record) bool { return r.Kind == delta.KindSynced }) {
				h.restart()
			}
			h.lead()
			h.relist()
		}
	case 2: // the source was restored: the resource versions of some go back
		h.restart()
		h.lead()
		h.rv = max(1, h.rv-20)
		for _, key := range slices.Sorted(maps.Keys(h.source)) {
			o := h.source[key]
			if newer, err := strconv.Atoi(o.rv); err != nil || newer > h.rv || h.IntN(2) == 0 {
				o.rv, o.app = strconv.Itoa(1+h.IntN(h.rv)), h.pick("web", "db")
				h.source[key] = o
			}
			if h.IntN(8) == 0 {
				delete(h.source, key)
			}
		}
	case 3: // the log is lost
		h.all, h.log, h.seq, h.cut, h.life = nil, nil, 0, 0, h.life+1
		h.restart()
		h.lead()
	case 4, 5:
		time.Sleep(time.Duration(h.IntN(50)) * time.Second)
	case 6:
		h.append(delta.Record{Kind: delta.KindProgress})
	default:
		for range 1 + h.IntN(8) {
			h.change()
		}
	}
	if !h.listed && h.IntN(3) > 0 {
		h.relist()
	}
	h.expire()
}

// logReader is a replica's place in the log.
type logReader struct {
	t    *testing.T
	c    *follow.Collection
	life int
	at   uint64
	seen time.Time
	from bool // a replay is under way
}

func newLogReader(t *testing.T, h *logHistory) *logReader {
	cfg := testConfig{ringChanges: 2 + h.IntN(40), ringBytes: 200 + h.IntN(20_000), ttl: modelTTL, now: time.Now}
	c := newWatchedWith(t, cfg)
	hubOf(c).most.events = 1 + h.IntN(5) // messages have an end wherever they can
	return &logReader{t: t, c: c, life: -1}
}

// read applies up to n records; it starts over where a follower would.
func (r *logReader) read(h *logHistory, n int) {
	b := delta.Batch{}
	if r.life != h.life && (r.life < 0 || r.at > h.cut || h.life != r.life+1) || time.Since(r.seen) > modelTTL/2 {
		b.Reset, r.from, r.at = true, true, 0
	}
	r.life, r.seen = h.life, time.Now()
	for _, rec := range h.log {
		if rec.Sequence <= r.at || len(b.Records) == n {
			continue
		}
		if rec.Sequence != r.at+1 {
			b.End = h.seq
		}
		b.Records, r.at = append(b.Records, rec), rec.Sequence
	}
	b.Next = r.at + 1
	if r.from && r.at == h.seq {
		b.Replayed, r.from = true, false
	}
	if len(b.Records) > 0 || b.Reset {
		mustFeed(r.t, r.c, b)
	}
}

// folder is a client: it adds up what it is told.
type folder struct {
	t       *testing.T
	h       *logHistory
	req     func() *indexv1.WatchRequest
	chosen  func(key string, o truth) bool
	slow    indexv1.WhenSlow
	state   map[string]string
	next    map[string]string // a state that is being told
	at      *deltav1.Position
	first   bool // nothing was heard on the stream
	diff    bool // what is told next is differences
	on      *logReader
	tape    *tape
	stop    func()
	ended   <-chan error
	trusted bool   // the state is whole
	epoch   uint64 // of the state
}

func (f *folder) connect(on *logReader) {
	req := f.req()
	req.WhenSlow, f.on = f.slow, on
	f.diff, f.next, f.first = false, nil, true
	if f.at != nil && f.h.IntN(8) > 0 {
		req.Resume = f.at
	} else {
		f.at, f.next = nil, map[string]string{}
	}
	if f.trusted && f.h.IntN(2) == 0 {
		req.Known, f.diff, f.next = maps.Clone(f.state), true, nil
		req.KnownEpoch = f.epoch
	}
	f.tape, f.stop, f.ended = serve(f.t, on.c, req)
}

func (f *folder) hear(m *indexv1.WatchResponse) {
	defer func() { f.first = false }()
	into := f.state
	if f.next != nil {
		into = f.next
	}
	switch k := m.GetKind().(type) {
	case *indexv1.WatchResponse_Gap:
		f.at = nil
		if !f.diff || !f.first { // what a reader has counts until it receives something
			f.diff, f.next = false, map[string]string{}
		}
	case *indexv1.WatchResponse_Events:
		for i, e := range k.Events.GetEvents() {
			if e.GetType() == deltav1.DeltaType_DELTA_TYPE_DELETED {
				delete(into, e.GetObject().GetKey())
			} else {
				into[e.GetObject().GetKey()] = e.GetObject().GetResourceVersion()
			}
			if p := e.GetPosition(); p != nil && f.next == nil && !f.h.over && i < len(k.Events.GetEvents())-1 && f.h.IntN(20) == 0 { // it goes no further than this
				f.at, f.epoch, f.diff = p, p.GetEpoch(), false
				f.stop()
				f.tape = nil
				return
			}
		}
	case *indexv1.WatchResponse_InitialStateEnd:
		if f.next != nil {
			f.state, f.next = f.next, nil
		}
		f.diff, f.trusted = false, true
	}
	if p := m.GetPosition(); p != nil {
		f.at, f.epoch = p, p.GetEpoch()
		if p.GetToldEpoch() != 0 && p.GetToldEpoch() != p.GetEpoch() {
			f.epoch = 0 // some versions are of another
		}
		if f.next == nil {
			f.diff = false
		}
	}
}

// look compares what a client has with what its replica would answer.
func (f *folder) look(m *indexv1.WatchResponse) {
	snap := f.on.c.Snapshot()
	p := snap.State().Position
	if at := placeOf(m.GetPosition()); !snap.State().Synced || f.tape == nil || at.ahead() || at.at != p {
		return
	}
	want := map[string]string{}
	for o := range snap.All("") {
		app := o.Labels().Get("app")
		node, _ := o.Field(define.NodeField)
		if f.chosen(o.Key(), truth{app: app, node: node[0]}) {
			want[o.Key()] = o.RV()
		}
	}
	if !maps.Equal(want, f.state) {
		f.t.Errorf("at %v a client has %v, its replica %v", p, f.state, want)
	}
}

func (f *folder) read(n int) {
	for range n {
		synctest.Wait()
		select {
		case m := <-f.tape.heard:
			f.hear(m)
			f.look(m)
			if f.tape != nil && placeOf(m.GetPosition()).ahead() && !f.h.over && f.h.IntN(3) == 0 { // in the middle of what belongs together
				f.stop()
				f.tape = nil
			}
			if f.tape == nil {
				return
			}
		case <-f.ended:
			f.tape = nil
			return
		default:
			return
		}
	}
}

var histories = flag.Uint64("histories", 60, "how many random histories of watches are run")

// What a reader received always adds up to the store's selection: from any
// position, on any replica, whatever became of the log, of it and of them.
func TestAClientThatAddsUpWhatItIsToldHasTheSelection(t *testing.T) {
	t.Parallel()
	for seed := range *histories {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { watchModel(t, seed) })
		})
	}
}

func watchModel(t *testing.T, seed uint64) {
	h := &logHistory{Rand: rand.New(rand.NewPCG(seed, 6)), source: map[string]truth{}, epoch: 1, epochs: 1}
	h.lead()
	h.relist()
	replicas := []*logReader{newLogReader(t, h), newLogReader(t, h), newLogReader(t, h)}
	var clients []*folder
	for i := range 6 {
		f := &folder{t: t, h: h, state: map[string]string{}, slow: indexv1.WhenSlow(h.IntN(4))}
		switch i {
		case 0:
			f.req = func() *indexv1.WatchRequest { return &indexv1.WatchRequest{LabelSelector: "app=web"} }
			f.chosen = func(_ string, o truth) bool { return o.app == "web" }
		case 1:
			f.req = func() *indexv1.WatchRequest {
				return &indexv1.WatchRequest{Index: define.NodeIndex, IndexValues: []string{"a", "b"}}
			}
			f.chosen = func(_ string, o truth) bool { return o.node != "c" }
		case 2:
			f.req = func() *indexv1.WatchRequest { return &indexv1.WatchRequest{Namespaces: []string{"n0", "n2"}} }
			f.chosen = func(key string, _ truth) bool { return key[:2] != "n1" }
		case 3:
			f.req = func() *indexv1.WatchRequest { return &indexv1.WatchRequest{FieldSelector: "spec.nodeName!=a"} }
			f.chosen = func(_ string, o truth) bool { return o.node != "a" }
		default:
			f.req = func() *indexv1.WatchRequest { return &indexv1.WatchRequest{} }
			f.chosen = func(string, truth) bool { return true }
		}
		clients = append(clients, f)
	}
	for range 150 {
		h.step()
		for _, r := range replicas {
			if h.IntN(3) > 0 {
				r.read(h, 1+h.IntN(30))
			}
		}
		if i := h.IntN(len(replicas)); h.IntN(25) == 0 { // it starts again
			for _, f := range clients {
				if f.tape != nil && f.on == replicas[i] {
					f.stop()
					f.tape = nil
				}
			}
			replicas[i] = newLogReader(t, h)
		}
		for _, f := range clients {
			switch {
			case f.tape == nil:
				f.connect(replicas[h.IntN(len(replicas))])
			case h.IntN(15) == 0:
				f.stop()
				f.tape = nil
			case h.IntN(3) > 0:
				f.read(h.IntN(6))
			}
		}
	}
	h.relist()
	h.over = true
	for range 5 { // until everybody has everything, and has heard a bookmark
		for _, r := range replicas {
			r.read(h, 1<<20)
		}
		for _, f := range clients {
			if f.tape == nil {
				f.connect(replicas[0])
			}
			f.read(1 << 20)
		}
		time.Sleep(11 * time.Second)
	}
	for i, f := range clients {
		want := map[string]string{}
		for key, o := range h.source {
			if f.chosen(key, o) {
				want[key] = o.rv
			}
		}
		if f.tape == nil || f.next != nil || !maps.Equal(want, f.state) {
			t.Errorf("client %d has %v, the source %v", i, f.state, want)
		}
		if f.tape != nil {
			f.stop()
			<-f.ended
		}
	}
	time.Sleep(time.Minute) // timers
}
