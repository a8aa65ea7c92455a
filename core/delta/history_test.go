package delta_test

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

// state is an object of the source; it is gone when uid is empty.
type state struct {
	rv  int
	uid string
}

type event struct {
	key string
	to  state
}

// world is a source of one collection, a reflector and its log, driven by the bytes of a fuzz
// input. The reflector is what services/reflector does with a shadow and a stage.
type world struct {
	t    testing.TB
	data []byte

	rv, uids int
	events   []event // the history of the source, by version

	epoch  uint64
	w      int // everything up to it was read; -1: a list is due
	shadow *delta.Shadow
	stage  *delta.Stage
	limit  int
	asked  bool // for a list, after changes were lost
	due    bool // a list is, in the next term too: the last one held objects without a name
	began  int  // no watch is opened from before it: what the last list, or the log at the begin of the term, was complete at

	log      []delta.Record // the last record of each key, in the log's order
	logW     string
	synced   uint64
	handed   int
	lists    int
	overfull int
	missed   int
	nameless int             // lists
	unknown  map[string]bool // what lists held without a name
}

func (w *world) next(n int) int {
	if len(w.data) == 0 {
		return 0
	}
	b := int(w.data[0])
	w.data = w.data[1:]
	return b % n
}

// at is the source as it was at version rv.
func (w *world) at(rv int) map[string]state {
	out := map[string]state{}
	for _, e := range w.events {
		if e.to.rv <= rv {
			out[e.key] = e.to
		}
	}
	return out
}

func (w *world) write() {
	key := "d/" + string(rune('a'+w.next(24)))
	was := w.at(w.rv)[key]
	w.rv += 1 + w.next(2)
	to := state{rv: w.rv, uid: was.uid}
	switch {
	case was.uid == "":
		w.uids++
		to.uid = strconv.Itoa(w.uids)
	case w.next(3) == 0:
		to.uid = ""
	}
	w.events = append(w.events, event{key, to})
}

func (w *world) object(key string, s state) *delta.Object {
	o := obj(key, s.rv)
	o.UID = s.uid
	o.Payload = append(o.Payload, make([]byte, 200)...)
	return o
}

// watch reads up to n events behind version from, some of them twice.
func (w *world) watch(from, n int) {
	for i, e := range w.events {
		if e.to.rv <= from || n == 0 {
			continue
		}
		n--
		w.event(e, w.events[:i])
		if w.next(6) == 0 {
			w.event(e, w.events[:i])
		}
	}
	if n > 0 && w.next(2) == 0 { // a bookmark
		w.stage.Advance(strconv.Itoa(w.rv))
		w.w = max(w.w, w.rv)
	}
}

func (w *world) event(e event, before []event) {
	var r delta.Record
	var ok bool
	if w.next(48) == 47 { // nobody can say whose it was
		w.stage.Miss()
		w.stage.Advance(strconv.Itoa(e.to.rv))
		w.w = max(w.w, e.to.rv)
		w.asked = true
		w.missed++
		return
	}
	if e.to.uid != "" {
		typ := []delta.Type{delta.Added, delta.Updated}[w.next(2)]
		r, ok = w.shadow.Upsert(typ, w.object(e.key, e.to), w.epoch, t0)
	} else {
		gone := e.to
		for _, b := range before {
			if b.key == e.key && b.to.uid != "" {
				gone.uid = b.to.uid
			}
		}
		r, ok = w.shadow.Delete(delta.Observed, w.object(e.key, gone), w.epoch, t0)
	}
	if ok && !w.stage.Offer(r) {
		w.shadow.Doubt(&r)
		w.overfull++
	}
	w.stage.Advance(strconv.Itoa(e.to.rv))
	w.w = max(w.w, e.to.rv)
}

// list lists the source, perhaps from a server that lags, perhaps only in part.
func (w *world) list() {
	at := w.rv - w.next(4)
	at = max(at, w.w, 0)
	objects := w.at(at)
	keys := slices.Sorted(maps.Keys(objects))
	broken := w.next(5) == 4
	nameless := map[string]bool{}
	w.shadow.BeginList()
	for i, key := range keys {
		if broken && i == len(keys)/2 {
			return
		}
		if s := objects[key]; s.uid != "" {
			if w.next(40) == 39 {
				nameless[key] = true
				continue
			}
			for range 1 + w.next(9)/8 {
				if r, ok := w.shadow.Listed(w.object(key, s), w.epoch, t0); ok {
					w.stage.Push(r)
				}
			}
			if w.next(9) == 0 {
				w.drain(1)
			}
		}
	}
	ended := w.shadow.EndList
	if len(nameless) > 0 {
		w.nameless++
		ended = func(rv delta.RV, epoch uint64, now time.Time) []delta.Record {
			_, doubts := w.shadow.Unlisted(rv, epoch, now)
			return doubts
		}
	}
	for _, r := range ended(strconv.Itoa(at), w.epoch, t0) {
		w.stage.Push(r)
	}
	w.due = len(nameless) > 0
	maps.Copy(w.unknown, nameless)
	if !w.stage.Agree(w.shadow.Digest()) {
		w.t.Fatal("the shadow has another digest than the stage will have brought the log to")
	}
	w.stage.Recover()
	w.stage.Advance(strconv.Itoa(at))
	w.stage.Control(delta.Record{Kind: delta.KindSynced, RV: strconv.Itoa(at)})
	w.w, w.asked, w.began = max(w.w, at), false, at
	w.lists++
}

// lead begins a leadership term from what the log says; what was staged is gone.
func (w *world) lead(newEpoch bool) {
	if newEpoch {
		w.epoch++
		w.logW = ""
	}
	w.shadow, w.asked = delta.NewShadow(time.Hour), false
	for i := range w.log {
		w.shadow.Restore(&w.log[i], t0)
	}
	w.w = -1
	from := ""
	if w.synced == w.epoch && w.logW != "" {
		from = w.logW
		w.w, _ = strconv.Atoi(from)
	}
	w.stage, w.began = delta.NewStage(w.limit, from), max(w.w, 0)
	w.stage.Count(w.shadow.Len())
	w.stage.Digest(w.shadow.Digest())
}

// restore takes the source back to an earlier version, as from a backup, and lets it go on from
// there.
func (w *world) restore() {
	back := w.rv - 1 - w.next(8)
	w.events = slices.DeleteFunc(w.events, func(e event) bool { return e.to.rv > back })
	w.rv = max(back, 0)
	w.lead(true)
}

func (w *world) step() {
	switch op := w.next(32); {
	case op < 14:
		w.write()
	case op < 22:
		if w.w >= 0 && !w.asked {
			w.watch(w.w, 1+w.next(20))
		}
	case op < 26:
		w.drain(1 + w.next(4))
	case op == 26:
		w.drain(30)
	case op == 27 || w.w < 0 || w.asked:
		w.list()
	case op == 28: // the watch is opened again from before what was read
		w.watch(max(w.began, w.w-w.next(6)), 8)
	case op == 29:
		w.lead(false)
	case op == 30 && w.next(3) == 0:
		w.restore()
	}
	if w.stage.Lost() && w.stage.Bytes() < w.limit/2 {
		w.asked = true
	}
}

func (w *world) drain(n int) {
	for _, r := range w.stage.Pop(n, 1<<20) {
		w.handed++
		r.Epoch = w.epoch
		if r.Kind == delta.KindDelta {
			w.take(r)
		}
		if r.Kind == delta.KindSynced {
			w.synced = w.epoch
		}
		if live := w.live(); !r.Counted || r.Live != live || r.Step != 0 {
			w.t.Fatalf("%v %s@%s counts %d living keys (%v), the log holds %d", r.Type, r.Key, r.RV, r.Live, r.Counted, live)
		}
		if held := w.digest(); !r.Digested || r.Digest != held || r.Change != 0 {
			w.t.Fatalf("%v %s@%s has the digest %x (%v), what the log holds has %x", r.Type, r.Key, r.RV, r.Digest, r.Digested, held)
		}
		if delta.Compare(r.Watermark, w.logW) < 0 {
			w.t.Fatalf("W went back from %q to %q", w.logW, r.Watermark)
		}
		if w.logW = r.Watermark; w.logW != "" {
			w.vouched()
		}
	}
}

// live is how many keys of the log live.
func (w *world) live() (n int) {
	for i := range w.log {
		if !w.log[i].Tombstone() {
			n++
		}
	}
	return n
}

func (w *world) digest() (d delta.Digest) {
	for i := range w.log {
		if r := &w.log[i]; !r.Tombstone() {
			d += delta.DigestOf(string(r.Key), r.RV)
		}
	}
	return d
}

// take checks that a record is a later true state of its key, and folds it.
func (w *world) take(r delta.Record) {
	rv, _ := strconv.Atoi(r.RV)
	was := w.at(rv)[string(r.Key)] // the key at that version
	if i := slices.IndexFunc(w.log, func(h delta.Record) bool { return h.Key == r.Key }); i >= 0 {
		held := w.log[i]
		if !(held.Stamp().Compare(r.Stamp()) < 0 || held.Stamp() == r.Stamp() && (held.Hash == r.Hash || unreadable(held) || unreadable(r))) {
			w.t.Fatalf("%s@%s of epoch %d follows %s of epoch %d", r.Key, r.RV, r.Epoch, held.RV, held.Epoch)
		}
		w.log = slices.Delete(w.log, i, i+1)
	}
	if unreadable(r) {
		w.log = append(w.log, r)
		return
	}
	if r.Tombstone() != (was.uid == "") || !r.Tombstone() && (was.rv != rv || was.uid != r.UID) {
		w.t.Fatalf("%s %s@%s (%s) is no state of the source, which has %+v", r.Type, r.Key, r.RV, r.UID, was)
	}
	w.log = append(w.log, r)
}

func unreadable(r delta.Record) bool { return r.Encoding == delta.EncodingUnreadable }

// vouched checks that the log holds for each key what the source had at W, or something later.
func (w *world) vouched() {
	upTo, _ := strconv.Atoi(w.logW)
	held := map[string]delta.Record{}
	for _, r := range w.log {
		held[string(r.Key)] = r
	}
	for key, s := range w.at(upTo) {
		r, known := held[key]
		rv, _ := strconv.Atoi(r.RV)
		switch {
		case known && unreadable(r) && r.Epoch == w.epoch: // nobody takes it for current
		case w.unknown[key] && (!known || r.Tombstone()): // it was not known, and there is no name to tell it by
		case !known && s.uid == "", known && r.Tombstone() && s.uid == "":
		case known && r.Epoch == w.epoch && rv >= s.rv:
		case known && !r.Tombstone() && rv == s.rv && r.UID == s.uid: // unchanged since another epoch
		default:
			w.t.Fatalf("W %d vouches for %s as %+v, the log has %v@%s of epoch %d (now %d), known %v", upTo, key, s, r.Type, r.RV, r.Epoch, w.epoch, known)
		}
	}
}

// finish lets the reflector come to rest, and checks that the log folds to the source.
func (w *world) finish() {
	w.data = nil
	for range 10 {
		w.drain(1 << 20)
		if w.w < 0 || w.stage.Lost() || w.due {
			w.list()
			continue
		}
		w.watch(w.w, 1<<20)
	}
	w.drain(1 << 20)
	live := map[string]state{}
	for _, r := range w.log {
		if rv, _ := strconv.Atoi(r.RV); !r.Tombstone() {
			live[string(r.Key)] = state{rv: rv, uid: r.UID}
		}
	}
	want := w.at(w.rv)
	maps.DeleteFunc(want, func(_ string, s state) bool { return s.uid == "" })
	if !maps.Equal(live, want) {
		w.t.Fatalf("the log folds to\n%v, the source has\n%v", live, want)
	}
	if last := strconv.Itoa(w.w); w.stage.Len() != 0 || w.stage.Bytes() != 0 || w.logW != last {
		w.t.Fatalf("%d records, %d bytes are left; W %s, want %s", w.stage.Len(), w.stage.Bytes(), w.logW, last)
	}
}

func runHistory(t testing.TB, data []byte) *world {
	w := &world{t: t, data: data, epoch: 1, rv: 10, unknown: map[string]bool{}}
	w.limit = 600 << w.next(5)
	w.lead(false)
	for len(w.data) > 0 {
		w.step()
	}
	w.finish()
	return w
}

// seed is a history of n bytes.
func seed(n, number int) []byte {
	rng := rand.New(rand.NewPCG(uint64(number), 3))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	return data
}

func TestRandomHistoriesFoldToTheSource(t *testing.T) {
	t.Parallel()
	var sum world
	for n := range 30 {
		w := runHistory(t, seed(1200, n))
		sum.handed, sum.lists, sum.overfull, sum.epoch = sum.handed+w.handed, sum.lists+w.lists, sum.overfull+w.overfull, max(sum.epoch, w.epoch)
		sum.missed, sum.nameless = sum.missed+w.missed, sum.nameless+w.nameless
	}
	if cmp.Compare(sum.handed, 2000) < 0 || sum.lists < 50 || sum.overfull < 20 || sum.epoch < 3 || sum.missed < 20 || sum.nameless < 20 {
		t.Errorf("%d records, %d lists, %d changes lost, %d epochs, %d events missed, %d lists with objects that have no name: the histories are too tame",
			sum.handed, sum.lists, sum.overfull, sum.epoch, sum.missed, sum.nameless)
	}
}

func FuzzHistories(f *testing.F) {
	for n := range 24 {
		f.Add(seed(600, 1000+n))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4000 {
			t.Skip("long histories find nothing that short ones do not")
		}
		runHistory(t, data)
	})
}
