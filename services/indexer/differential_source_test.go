package indexer_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// stamp orders the states of a source.
type stamp struct {
	epoch uint64
	rv    int
}

func (s stamp) less(o stamp) bool { return s.epoch < o.epoch || s.epoch == o.epoch && s.rv < o.rv }

// version is one state of a key.
type version struct {
	at                    stamp
	gone, unreadable      bool
	uid, app, node, owner string
	payload               string
}

const (
	namespaces = 3
	nodes      = 4
	owners     = 3
	names      = 12
)

// source writes a log and remembers all of it.
type source struct {
	w   *world
	rng *rand.Rand

	mu      sync.Mutex // guards history
	history map[string][]*version
}

func newSource(t *testing.T, w *world, seed uint64) *source {
	t.Helper()
	return &source{w: w, rng: rand.New(rand.NewPCG(seed, 0)), history: map[string][]*version{}}
}

func (s *source) begin(t *testing.T) {
	s.w.w = s.w.lead(t, pods, false)
	s.burst(t, 20)
	s.w.sync(t)
}

// step is one thing that happens to a source.
func (s *source) step(t *testing.T) {
	switch s.rng.IntN(16) {
	case 0: // a new leader
		s.w.w = s.w.lead(t, pods, false)
		s.w.sync(t)
	case 1: // the source was restored: versions go back, some objects are other ones
		s.w.w = s.w.lead(t, pods, true)
		s.w.rv = max(0, s.w.rv-s.rng.IntN(50))
		s.burst(t, s.rng.IntN(10))
		s.w.sync(t)
	case 4: // the log is lost: a new one holds what still exists, and no tombstone of what does not
		s.lose(t)
	case 2: // nothing but progress
		s.w.rv++
		rv := strconv.Itoa(s.w.rv)
		write(t, s.w.w, delta.Record{Kind: delta.KindProgress, RV: rv, Watermark: rv})
	case 3: // so many that a reader finds holes
		s.burst(t, 300)
	default:
		s.burst(t, 1+s.rng.IntN(6))
	}
}

func (s *source) lose(t *testing.T) {
	answered(t, func() error { return s.w.conn.Remove(t.Context(), pods) })
	s.w.w = s.w.lead(t, pods, true)
	var keep []string
	var lost []delta.Record
	now := s.latest()
	for _, key := range slices.Sorted(maps.Keys(now)) {
		if s.rng.IntN(4) > 0 {
			keep = append(keep, key)
			continue
		}
		s.mu.Lock()
		s.history[key] = append(s.history[key], &version{at: stamp{s.w.w.Epoch(), 0}, gone: true})
		s.mu.Unlock()
		lost = append(lost, gone(key))
	}
	const empty = 2 // the last fence and the term
	var tail stream.Tail
	answered(t, func() (err error) {
		tail, err = s.w.conn.Tail(t.Context(), pods)
		return err
	})
	if tail.Messages > empty { // the server has found the files of the old log: what a reflector's shadow would tell must be told
		s.w.put(t, lost...)
	}
	s.write(t, keep, false)
	s.w.sync(t)
}

// settle makes the end readable.
func (s *source) settle(t *testing.T) {
	for key, v := range s.latest() {
		if v.unreadable {
			s.write(t, []string{key}, false)
		}
	}
	s.w.sync(t)
}

func (s *source) burst(t *testing.T, n int) {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("ns-%d/p%02d", s.rng.IntN(namespaces), s.rng.IntN(names))
	}
	s.write(t, keys, true)
}

func (s *source) write(t *testing.T, keys []string, any bool) {
	var records []delta.Record
	for _, key := range keys {
		rec, v := s.change(key, any)
		rec = s.w.stamp([]delta.Record{rec})[0]
		v.at = stamp{s.w.w.Epoch(), s.w.rv}
		v.payload = string(rec.Payload)
		if v.unreadable {
			rec.Hash++ // does not match what is in it
			rec.Checksum = ^delta.Checksum(rec.Payload)
		}
		s.mu.Lock()
		s.history[key] = append(s.history[key], v)
		s.mu.Unlock()
		records = append(records, rec)
	}
	write(t, s.w.w, records...)
}

// change makes the next state of a key, any one or one that can be read.
func (s *source) change(key string, any bool) (delta.Record, *version) {
	var old *version
	if h := s.history[key]; len(h) > 0 {
		old = h[len(h)-1]
	}
	if any && old != nil && !old.gone && s.rng.IntN(4) == 0 {
		return gone(key), &version{gone: true}
	}
	v := &version{
		node: "n" + strconv.Itoa(s.rng.IntN(nodes)), owner: "owner-" + strconv.Itoa(s.rng.IntN(owners)),
		app: []string{"", "a", "b", "c"}[s.rng.IntN(4)], uid: "uid-" + strconv.Itoa(s.rng.IntN(1<<30)),
		unreadable: any && s.rng.IntN(40) == 0,
	}
	if old != nil && !old.gone && s.rng.IntN(8) > 0 { // else it was deleted and recreated in between
		v.uid = old.uid
	}
	labels := ""
	if v.app != "" {
		labels = "app=" + v.app
	}
	return pod(key, options{node: v.node, owner: v.owner, labels: labels, uid: v.uid, phase: "Running", pad: s.rng.IntN(2000)}), v
}

func (s *source) latest() map[string]*version {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := map[string]*version{}
	for key, h := range s.history {
		if v := h[len(h)-1]; !v.gone {
			now[key] = v
		}
	}
	return now
}

// check compares a read with every state of the source at or after the revision.
func (s *source) check(at stamp, namespace string, want func(*version) bool, got map[string]*indexv1.Object, quarantined map[string]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, h := range s.history {
		if namespace != "" && key[:len(namespace)] != namespace {
			continue
		}
		from := 0
		for i, v := range h {
			if !at.less(v.at) {
				from = i
			}
		}
		obj := got[key]
		delete(got, key)
		ok := obj == nil && at.less(h[0].at) // not made yet
		for _, v := range h[from:] {
			chosen := !v.gone && (v.unreadable || want == nil || want(v))
			switch {
			case obj == nil:
				ok = ok || !chosen
			case v.unreadable:
				ok = ok || chosen && quarantined[key] && obj.GetEncoding() == 0 && len(obj.GetPayload()) == 0
			default:
				ok = ok || chosen && string(obj.GetPayload()) == v.payload && obj.GetUid() == v.uid
			}
		}
		if !ok {
			return fmt.Errorf("%s is read at %v as version %q (there: %v); the source had %s", key, at, obj.GetResourceVersion(), obj != nil, describe(h[from:]))
		}
	}
	for key := range got {
		return fmt.Errorf("%s is read and never was", key)
	}
	return nil
}

// equal compares objects with the latest state.
func (s *source) equal(objects []*indexv1.Object, want func(*version) bool) error {
	now := s.latest()
	for _, o := range objects {
		v := now[o.GetKey()]
		if v == nil || want != nil && !want(v) || v.payload != string(o.GetPayload()) {
			return fmt.Errorf("%s is read in version %s, the source has %+v", o.GetKey(), o.GetResourceVersion(), v)
		}
		delete(now, o.GetKey())
	}
	for key, v := range now {
		if want == nil || want(v) {
			return fmt.Errorf("%s is missing", key)
		}
	}
	return nil
}

func describe(h []*version) string {
	var text strings.Builder
	for _, v := range h {
		fmt.Fprintf(&text, " [%d:%d gone=%v unreadable=%v app=%q]", v.at.epoch, v.at.rv, v.gone, v.unreadable, v.app)
	}
	return text.String()
}
