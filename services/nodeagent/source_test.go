package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// script is an index whose watch a test tells.
type script struct{ events chan told }

type told struct {
	event client.Event
	err   error
}

func (s *script) Watch(ctx context.Context, _ string, o client.WatchOptions) iter.Seq2[client.Event, error] {
	return func(yield func(client.Event, error) bool) {
		if o.Index != "node" || o.Value != "n" {
			yield(client.Event{}, errors.New("not the pods of the node"))
			return
		}
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-s.events:
				if !yield(e.event, e.err) || e.err != nil {
					return
				}
			}
		}
	}
}

// server is the API server as the source asks it.
type server struct {
	mu    sync.Mutex
	pods  map[string]*corev1.Pod
	err   error
	asked int
}

func (s *server) Get(_ context.Context, ref kube.Ref) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.err != nil {
		return nil, s.err
	}
	pod := s.pods[ref.Namespace+"/"+ref.Name]
	if pod == nil {
		return nil, &kube.StatusError{Code: http.StatusNotFound, Reason: "NotFound"}
	}
	return json.Marshal(pod)
}

func (s *server) ListEach(_ context.Context, _ kube.Resource, o kube.ListOptions, begin func(kube.Page) error, item func([]byte) error) (kube.Page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return kube.Page{}, s.err
	}
	if o.FieldSelector != "spec.nodeName=n" {
		return kube.Page{}, errors.New("not the pods of the node")
	}
	if err := begin(kube.Page{}); err != nil {
		return kube.Page{}, err
	}
	for _, p := range s.pods {
		raw, err := json.Marshal(p)
		if err == nil {
			err = item(raw)
		}
		if err != nil {
			return kube.Page{}, err
		}
	}
	return kube.Page{}, nil
}

func (s *server) set(err error, pods ...*corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.pods = err, map[string]*corev1.Pod{}
	for _, p := range pods {
		s.pods[p.Namespace+"/"+p.Name] = p
	}
}

func (s *server) put(p *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods == nil {
		s.pods = map[string]*corev1.Pod{}
	}
	s.pods[p.Namespace+"/"+p.Name] = p
}

// feed is a source with all around it, within a synctest bubble.
type feed struct {
	t       *testing.T
	index   *script
	api     *server
	src     *source
	settled map[types.UID]bool
}

func newFeed(t *testing.T) *feed {
	t.Helper()
	f := &feed{t: t, index: &script{events: make(chan told)}, api: &server{}, settled: map[types.UID]bool{}}
	f.src = newSource(f.index, f.api, "dev", "n", func(uid types.UID) bool { return f.settled[uid] }, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { f.src.watch(ctx) })
	wg.Go(func() { f.src.settleDoubts(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return f
}

func pod(name, uid, rv string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: rv},
		Spec:       corev1.PodSpec{NodeName: "n"},
	}
}

func (f *feed) say(kind client.EventType, pods ...*corev1.Pod) {
	f.t.Helper()
	for _, p := range pods {
		raw, err := json.Marshal(p)
		if err != nil {
			f.t.Fatal(err)
		}
		e := client.Event{Type: kind, Object: client.Object{Key: p.Namespace + "/" + p.Name, Payload: raw}}
		if kind == client.EventDeleted {
			e.Object.Payload = nil
		}
		f.index.events <- told{event: e}
	}
}

// state tells an initial state, by an index that is not behind.
func (f *feed) state(epoch uint64, pods ...*corev1.Pod) {
	f.t.Helper()
	for _, p := range pods {
		f.api.put(p)
	}
	f.stale(epoch, pods...)
}

// stale tells an initial state, whatever the API server has.
func (f *feed) stale(epoch uint64, pods ...*corev1.Pod) {
	f.t.Helper()
	f.say(client.EventAdded, pods...)
	f.index.events <- told{event: client.Event{Type: client.EventInitialEnd, Revision: client.Revision{Epoch: epoch}}}
}

func (f *feed) gap() {
	f.index.events <- told{event: client.Event{Type: client.EventGap, Reason: "test"}}
}

// heard waits until nothing moves and compares what the loop was told, sorted.
func (f *feed) heard(want ...string) {
	f.t.Helper()
	synctest.Wait()
	var got []string
	for {
		select {
		case c := <-f.src.out:
			name := map[changeKind]string{changeSet: "set", changeRemoved: "removed", changeOrphan: "orphan", changeSynced: "synced"}[c.kind]
			if c.uid != "" {
				name += " " + string(c.uid)
			}
			if c.kind == changeSet {
				name += "@" + c.pod.ResourceVersion
			}
			got = append(got, name)
			continue
		default:
		}
		break
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		f.t.Errorf("the loop was told %q, want %q", got, want)
	}
}

// later lets the bubble's clock go on.
func later(d time.Duration) { <-time.After(d) }

func TestSource(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(f *feed){
		"an index that is behind brings no pod back whose end this node has seen": func(f *feed) {
			f.api.set(nil, pod("b", "2", "9"))
			f.stale(1, pod("a", "1", "5"), pod("b", "2", "6"))
			f.heard("set 2@9", "synced")
			f.gap()
			f.api.set(errors.New("away"))
			f.stale(1, pod("a", "1", "5"), pod("b", "2", "10"))
			later(time.Minute)
			f.heard()
			f.api.set(nil, pod("b", "2", "10"))
			later(time.Minute)
			f.heard("set 2@10")
		},
		"pods are told once the initial state is complete": func(f *feed) {
			f.api.put(pod("a", "1", "5"))
			f.say(client.EventAdded, pod("a", "1", "5"))
			f.heard()
			if f.src.ready() == nil {
				f.t.Error("ready() = nil before the pods were told")
			}
			f.state(1, pod("b", "2", "6"))
			f.heard("set 1@5", "set 2@6", "synced")
			if err := f.src.ready(); err != nil {
				f.t.Errorf("ready() = %v", err)
			}
			f.say(client.EventUpdated, pod("a", "1", "7"))
			f.heard("set 1@7")
		},
		"an empty state after a gap ends nothing that the API server still has": func(f *feed) {
			f.state(1, pod("a", "1", "5"))
			f.heard("set 1@5", "synced")
			f.api.set(nil, pod("a", "1", "5"))
			f.gap()
			f.state(1)
			later(time.Minute)
			f.heard()
			f.say(client.EventAdded, pod("a", "1", "5")) // the replica has caught up
			f.api.set(nil)
			later(time.Minute)
			f.heard() // no doubt is left
		},
		"a deletion that the API server cannot confirm waits until it can": func(f *feed) {
			f.state(1, pod("a", "1", "5"))
			f.heard("set 1@5", "synced")
			f.api.set(errors.New("away"))
			f.say(client.EventDeleted, pod("a", "1", "6"))
			later(10 * time.Minute)
			f.heard()
			f.api.set(nil)
			later(time.Minute)
			f.heard("removed 1")
		},
		"a pod of another life under the same name ends the first": func(f *feed) {
			f.state(1, pod("a", "1", "5"))
			f.heard("set 1@5", "synced")
			f.say(client.EventUpdated, pod("a", "2", "9"))
			f.heard("removed 1", "set 2@9")
			f.api.set(nil, pod("a", "3", "12"))
			f.say(client.EventDeleted, pod("a", "2", "10"))
			later(time.Second)
			f.heard("removed 2") // another UID under the name proves it
		},
		"the removal of a pod that has ended is believed": func(f *feed) {
			f.state(1, pod("a", "1", "5"))
			f.heard("set 1@5", "synced")
			f.settled["1"] = true
			f.say(client.EventDeleted, pod("a", "1", "6"))
			f.heard("removed 1")
			if f.api.asked != 0 {
				f.t.Errorf("the API server was asked %d times, want not at all", f.api.asked)
			}
		},
		"a replica that is behind takes nothing back": func(f *feed) {
			f.state(1, pod("a", "1", "50"))
			f.heard("set 1@50", "synced")
			f.gap()
			f.state(1, pod("a", "1", "9"))
			f.heard()
			f.gap()
			f.state(2, pod("a", "1", "9")) // a new epoch: the source was restored
			f.heard("set 1@9")
		},
		"events of a replica that is behind end no pod of a later life, and take nothing back": func(f *feed) {
			f.state(1, pod("a", "2", "50"), pod("b", "3", "51"))
			f.heard("set 2@50", "set 3@51", "synced")
			f.gap()
			f.stale(1, pod("a", "1", "9"), pod("b", "3", "8"))
			later(time.Minute)
			f.heard()
			f.say(client.EventUpdated, pod("a", "1", "10"), pod("b", "3", "11"))
			f.say(client.EventDeleted, pod("a", "1", "12"))
			later(time.Minute)
			f.heard()
			f.say(client.EventAdded, pod("a", "2", "50"))
			f.say(client.EventUpdated, pod("a", "2", "60"), pod("b", "3", "61"))
			f.heard("set 2@60", "set 3@61")
		},
		"events of a replica that is behind bring no pod back that is gone for certain": func(f *feed) {
			f.state(1, pod("a", "1", "5"), pod("b", "2", "6"))
			f.heard("set 1@5", "set 2@6", "synced")
			f.settled["2"] = true
			f.say(client.EventDeleted, pod("b", "2", "7"))
			f.heard("removed 2")
			f.api.set(nil)
			f.src.doubt("ns", "orphan", "9")
			f.gap()
			f.stale(1)
			later(time.Minute)
			f.heard("orphan 9", "removed 1")
			f.say(client.EventAdded, pod("a", "1", "6"), pod("b", "2", "6"), pod("orphan", "9", "3"))
			f.heard()
			f.gap()
			f.state(2, pod("a", "1", "3")) // restored, and the API server has it
			f.heard("set 1@3")
		},
		"versions of an epoch that is over hide no new ones": func(f *feed) {
			f.state(1, pod("a", "1", "50"))
			f.heard("set 1@50", "synced")
			f.gap()
			f.api.set(nil, pod("a", "1", "9"))
			f.state(2)
			later(time.Minute)
			f.heard("set 1@9")
			f.say(client.EventAdded, pod("a", "1", "10"))
			f.heard("set 1@10")
		},
		"what only the runtime knows is an orphan once the API server says so": func(f *feed) {
			f.state(1)
			f.heard("synced")
			f.api.set(nil, pod("late", "7", "3"))
			f.src.doubt("ns", "orphan", "9")
			f.src.doubt("ns", "late", "7")
			later(time.Second)
			f.heard("orphan 9", "set 7@3")
		},
		"a pod that is found under the name of another ends that one": func(f *feed) {
			f.state(1, pod("a", "1", "5"))
			f.heard("set 1@5", "synced")
			f.api.set(nil, pod("a", "2", "9"))
			f.src.doubt("ns", "a", "2")
			later(time.Second)
			f.heard("removed 1", "set 2@9")
		},
		"a pod bound to another node is no pod of this one": func(f *feed) {
			other := pod("a", "1", "5")
			other.Spec.NodeName = "m"
			f.state(1, other)
			f.heard("synced")
			f.api.set(nil, other)
			f.src.doubt("ns", "a", "1")
			later(time.Second)
			f.heard("orphan 1")
		},
		"a collection that is not served is asked for again, and a broken watch starts over": func(f *feed) {
			f.index.events <- told{err: errors.New("not served")}
			f.state(1, pod("a", "1", "5"))
			f.heard("set 1@5", "synced")
			f.index.events <- told{err: errors.New("refused")}
			later(10 * time.Millisecond)
			if f.src.ready() == nil {
				f.t.Error("ready() = nil while the index is away")
			}
			f.state(1, pod("a", "1", "6"))
			f.heard("set 1@6")
		},
		"a pod that cannot be read leaves what was known": func(f *feed) {
			f.state(1, pod("a", "1", "5"))
			f.heard("set 1@5", "synced")
			f.index.events <- told{event: client.Event{Type: client.EventUpdated, Object: client.Object{Key: "ns/a", Payload: []byte("{")}}}
			f.index.events <- told{event: client.Event{Type: client.EventAdded, Object: client.Object{Key: "ns/b", Payload: []byte(`{"metadata":[]}`)}}}
			f.heard()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { test(newFeed(t)) })
		})
	}
}

// journal is a log that a test reads while it is written.
type journal struct {
	mu sync.Mutex
	b  strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

func TestPodsThatAreNotFollowedAreToldOnceAndAgainWhenTheyAre(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log journal
		src := newSource(&script{}, &server{}, "dev", "n", nil, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { src.warnWhenStale(ctx) })
		time.Sleep(3 * staleAfter / 2)
		if log.String() != "" {
			t.Errorf("told too soon: %s", log.String())
		}
		time.Sleep(10 * staleAfter)
		if got := log.String(); strings.Count(got, "WARN") != 1 || !strings.Contains(got, "have not been read yet") {
			t.Errorf("after a long while: %s", got)
		}
		src.mu.Lock()
		src.synced, src.watched = true, true
		src.mu.Unlock()
		time.Sleep(2 * staleAfter)
		cancel()
		wg.Wait()
		if got := log.String(); strings.Count(got, "WARN") != 1 || strings.Count(got, "followed again") != 1 {
			t.Errorf("at the end: %s", got)
		}
	})
}
