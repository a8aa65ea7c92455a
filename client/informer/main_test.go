package informer_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/informer"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*Server).Start.func1"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/sysmem.init"),
		// Of a stream that was requested while the server stopped.
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	)
}

// thing is what the tests follow. Its payload is "labels|value".
type thing struct {
	key, uid, rv, value string
	labels              map[string]string
}

func (t *thing) GetLabels() map[string]string { return t.labels }

func decode(o client.Object) (*thing, error) {
	labels, value, _ := strings.Cut(string(o.Payload), "|")
	if value == "poison" {
		return nil, fmt.Errorf("poison at %s", o.ResourceVersion)
	}
	if value == "bomb" {
		panic("bomb")
	}
	t := &thing{key: o.Key, uid: o.UID, rv: o.ResourceVersion, value: value, labels: map[string]string{}}
	for l := range strings.SplitSeq(labels, ",") {
		if k, v, ok := strings.Cut(l, "="); ok {
			t.labels[k] = v
		}
	}
	return t, nil
}

// source is an index whose objects the test changes: client-go's fake controller
// source. Every change has the next resource version and sequence.
type source struct {
	mu      sync.Mutex
	objects map[string]client.Object
	epoch   uint64
	n       uint64
	streams map[*watching]bool
	asked   []client.WatchOptions
	refuse  error // what a watch is refused with
	deaf    bool  // changes are not told
	moved   chan struct{}
}

type watching struct {
	events []client.Event
	err    error
	known  func() client.Known
}

func newSource(keys ...string) *source {
	s := &source{objects: map[string]client.Object{}, epoch: 1, streams: map[*watching]bool{}, moved: make(chan struct{})}
	for _, key := range keys {
		s.set(key, "")
	}
	return s
}

func (s *source) wake() { close(s.moved); s.moved = make(chan struct{}) }

func (s *source) position() client.Position {
	return client.Position{Epoch: s.epoch, Sequence: s.n, Term: 1}
}

func (s *source) revision() client.Revision {
	return client.Revision{Epoch: s.epoch, RV: strconv.FormatUint(s.n, 10)}
}

// Watch implements informer.Source.
func (s *source) Watch(ctx context.Context, _ string, o client.WatchOptions) iter.Seq2[client.Event, error] {
	return func(yield func(client.Event, error) bool) {
		st := &watching{known: o.Known}
		s.mu.Lock()
		s.asked = append(s.asked, o)
		if err := s.refuse; err != nil {
			s.mu.Unlock()
			yield(client.Event{}, err)
			return
		}
		if o.Resume == (client.Position{}) {
			s.tell(st)
		}
		s.streams[st] = true
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.streams, st)
		}()
		for {
			events, err, moved := st.events, st.err, s.moved
			st.events = nil
			s.mu.Unlock()
			for _, e := range events {
				if e.Type == client.EventGap && e.Reason == "ask" { // the client asks what is known when the gap is met
					s.state(st, o.Known(), true, yield)
					continue
				}
				if !yield(e, nil) {
					return
				}
			}
			if err != nil {
				yield(client.Event{}, err)
				return
			}
			if len(events) == 0 {
				select {
				case <-ctx.Done():
					return
				case <-moved:
				}
			}
			s.mu.Lock()
		}
	}
}

// tell gives a stream that begins the state, or the differences from what it has.
// The mutex is held.
func (s *source) tell(st *watching) {
	k := st.known()
	s.stateLocked(k, len(k.Versions) > 0, func(e client.Event, _ error) bool {
		st.events = append(st.events, e)
		return true
	})
}

func (s *source) state(st *watching, k client.Known, gap bool, yield func(client.Event, error) bool) {
	s.mu.Lock()
	var events []client.Event
	s.stateLocked(k, gap, func(e client.Event, _ error) bool { events = append(events, e); return true })
	st.events = nil // they are in the state
	s.mu.Unlock()
	for _, e := range events {
		yield(e, nil)
	}
}

func (s *source) stateLocked(k client.Known, gap bool, yield func(client.Event, error) bool) {
	diff := len(k.Versions) > 0
	if gap {
		yield(client.Event{Type: client.EventGap, Reason: "lost", Differences: diff}, nil)
	}
	for _, key := range sortedKeys(k.Versions) {
		if _, there := s.objects[key]; !there {
			yield(client.Event{Type: client.EventDeleted, Object: client.Object{Key: key}, DeleteReason: client.DeleteInferred}, nil)
		}
	}
	for _, key := range sortedKeys(s.objects) {
		o := s.objects[key]
		if k.Versions[key] != o.ResourceVersion || k.Epoch != s.epoch {
			yield(client.Event{Type: client.EventAdded, Object: o}, nil)
		}
	}
	yield(client.Event{Type: client.EventInitialEnd, Position: s.position(), Revision: s.revision()}, nil)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (s *source) emit(e client.Event) {
	e.Position, e.Revision = s.position(), s.revision()
	if !s.deaf {
		for st := range s.streams {
			st.events = append(st.events, e)
		}
	}
	s.wake()
}

// set makes or changes an object: its payload is "labels|value". The UID stays.
func (s *source) set(key, payload string) { s.setUID(key, "", payload) }

func (s *source) setUID(key, uid, payload string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	typ := client.EventAdded
	if old, ok := s.objects[key]; ok {
		typ = client.EventUpdated
		if uid == "" {
			uid = old.UID
		}
	}
	if uid == "" {
		uid = fmt.Sprintf("uid-%s-%d", key, s.n)
	}
	o := client.Object{Key: key, UID: uid, ResourceVersion: strconv.FormatUint(s.n, 10), Payload: []byte(payload)}
	if strings.HasSuffix(payload, "|quarantined") {
		o.Payload, o.Quarantined = nil, true
	}
	s.objects[key] = o
	s.emit(client.Event{Type: typ, Object: o})
}

func (s *source) delete(key string, why client.DeleteReason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	o := client.Object{Key: key, UID: s.objects[key].UID, ResourceVersion: strconv.FormatUint(s.n, 10)}
	delete(s.objects, key)
	s.emit(client.Event{Type: client.EventDeleted, Object: o, DeleteReason: why})
}

// end deletes an object, and tells it as it was deleted.
func (s *source) end(key, payload string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	o := client.Object{Key: key, UID: s.objects[key].UID, ResourceVersion: strconv.FormatUint(s.n, 10), Payload: []byte(payload)}
	delete(s.objects, key)
	s.emit(client.Event{Type: client.EventDeleted, Object: o, DeleteReason: client.DeleteObserved})
}

// send tells an event as it is.
func (s *source) send(e client.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		st.events = append(st.events, e)
	}
	s.wake()
}

// unheard makes changes that no stream tells of.
func (s *source) unheard(do func()) {
	s.setDeaf(true)
	do()
	s.setDeaf(false)
}

func (s *source) setDeaf(deaf bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaf = deaf
}

// lose makes streams find that history is gone: they ask for what is known, and send
// the differences. With whole they send the whole state.
func (s *source) lose(whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if !whole {
			st.events = append(st.events, client.Event{Type: client.EventGap, Reason: "ask"})
			continue
		}
		s.stateLocked(client.Known{}, true, func(e client.Event, _ error) bool {
			st.events = append(st.events, e)
			return true
		})
	}
	s.wake()
}

// bookmark moves the revision on with nothing changed.
func (s *source) bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	for st := range s.streams {
		st.events = append(st.events, client.Event{Type: client.EventBookmark, Position: s.position(), Revision: s.revision()})
	}
	s.wake()
}

// fail ends every stream with an error.
func (s *source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		st.err = err
	}
	s.wake()
}

func (s *source) refuseWith(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = err
}

// recorder is a handler that writes down what it receives.
type recorder struct {
	mu     sync.Mutex
	told   []string
	during func(what string) // called before it is written down
}

func (r *recorder) note(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	if r.during != nil {
		r.during(what)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, what)
}

func (r *recorder) OnAdd(o *thing, initial bool) {
	if initial {
		r.note("add %s@%s initial", o.key, o.rv)
	} else {
		r.note("add %s@%s", o.key, o.rv)
	}
}
func (r *recorder) OnUpdate(old, o *thing) { r.note("update %s@%s->%s", o.key, old.rv, o.rv) }
func (r *recorder) OnDelete(d informer.Deletion[*thing]) {
	r.note("delete %s@%s %v", d.Key, d.Object.rv, d.Reason)
}

// take returns what was received since the last take.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := r.told
	r.told = nil
	return told
}

// running is an informer that runs until the end of the test.
type running struct {
	*informer.Shared[*thing]
	src    *source
	stop   context.CancelFunc
	errors *errorLog
}

type errorLog struct {
	mu  sync.Mutex
	all []error
}

func (l *errorLog) add(err error) { l.mu.Lock(); defer l.mu.Unlock(); l.all = append(l.all, err) }
func (l *errorLog) list() []error { l.mu.Lock(); defer l.mu.Unlock(); return slices.Clone(l.all) }

func create(t *testing.T, src *source, change func(*informer.Config[*thing])) *running {
	t.Helper()
	errs := &errorLog{}
	cfg := informer.Config[*thing]{Collection: "dev/things.v1", Decode: decode, OnError: errs.add}
	if change != nil {
		change(&cfg)
	}
	i, err := informer.New[*thing](src, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &running{Shared: i, src: src, errors: errs}
}

// run starts the informer, inside a bubble, and lets it do what it can.
func (r *running) run(t *testing.T) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = func() { cancel(); <-r.Stopped() }
	go func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("Run = %v, want nil on a clean stop", err)
		}
	}()
	t.Cleanup(r.stop)
	synctest.Wait()
	return r
}

func (r *running) handle(t *testing.T, h informer.Handler[*thing], o informer.HandlerOptions) *informer.Registration {
	t.Helper()
	reg, err := r.AddHandler(h, o)
	if err != nil {
		t.Fatal(err)
	}
	return reg
}

// bubble runs a test on fake time.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// after lets time pass, and everything that follows from it happen.
func after(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
	synctest.Wait()
}
