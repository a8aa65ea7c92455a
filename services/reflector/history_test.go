package reflector_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// past is a source with a history, served by a scripted API server that fails at random.
type past struct {
	mu        sync.Mutex
	rng       *rand.Rand
	rv, uids  int
	changes   []change
	live      map[string]change // by name
	forgotten int               // watches from before it have expired
	wake      chan struct{}     // closed when something changed
	out       string            // a namespace that is not mirrored
}

// change is a version of one pod; gone says that it was deleted at it.
type change struct {
	name    string
	rv, uid int
	gone    bool
}

func (c change) item() string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":%q,"uid":"%d","resourceVersion":"%d"}}`, c.name, c.namespace(), c.uid, c.rv)
}

// namespace follows from the name.
func (c change) namespace() string {
	return []string{"default", "other", "more"}[len(c.name)*int(c.name[len(c.name)-1])%3]
}

func (p *past) key(c change) delta.Key { return delta.Key(c.namespace() + "/" + c.name) }

// chance is true once in n times.
func (p *past) chance(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rng.IntN(n) == 0
}

// write makes, changes, deletes or remakes a pod; now and then what happened before is forgotten.
func (p *past) write() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rv += 1 + p.rng.IntN(2)
	name := "p" + strconv.Itoa(p.rng.IntN(16))
	c, lives := p.live[name]
	if !lives {
		p.uids++
		c = change{name: name, uid: p.uids}
	}
	c.rv = p.rv
	if c.gone = lives && p.rng.IntN(3) == 0; c.gone {
		delete(p.live, c.name)
	} else {
		p.live[c.name] = c
	}
	p.changes = append(p.changes, c)
	if p.rng.IntN(60) == 0 {
		p.forgotten = p.rv
	}
	close(p.wake)
	p.wake = make(chan struct{})
}

func (p *past) list(_ int, q url.Values) (int, string) {
	if p.chance(5) {
		return 500, status(500, "InternalError", "scripted")
	}
	if q.Get("resourceVersion") != "" && q.Get("resourceVersion") != "0" && p.chance(5) {
		return 410, status(410, "Expired", "scripted")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var items []string
	for _, c := range p.live {
		items = append(items, c.item())
	}
	return 200, list(strconv.Itoa(p.rv), "", items...)
}

// since is the changes behind a version, and what is closed when there are more.
func (p *past) since(rv int) (changes []change, expired bool, more <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.changes {
		if c.rv > rv {
			changes = append(changes, c)
		}
	}
	return changes, rv < p.forgotten, p.wake
}

// watch tells what happened, some of it twice, and ends as it likes.
func (p *past) watch(_ int, q url.Values, w *wire) {
	at, _ := strconv.Atoi(q.Get("resourceVersion"))
	if p.chance(8) {
		w.refuse(429, status(429, "TooManyRequests", "scripted"))
		return
	}
	w.send()
	first := true
	for {
		changes, expired, more := p.since(at)
		if expired && first {
			w.send(errorEvent(410, "Expired"))
			return
		}
		first = false
		for _, c := range changes {
			typ := "MODIFIED"
			if c.gone {
				typ = "DELETED"
			} else if p.chance(3) {
				typ = "ADDED"
			}
			line := event(typ, `{"kind":"Pod","apiVersion":"v1",`+c.item()[1:])
			w.send(line)
			at = c.rv
			switch {
			case p.chance(6):
				w.send(line)
			case p.chance(10):
				w.send(bookmark(at))
			case p.chance(40):
				return
			case p.chance(60):
				w.send(errorEvent(500, "InternalError"))
				return
			case p.chance(50):
				panic(http.ErrAbortHandler)
			}
		}
		select {
		case <-w.done:
			return
		case <-more:
		}
	}
}

// state is what lives now, with its versions.
func (p *past) state() map[delta.Key]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[delta.Key]string{}
	for _, c := range p.live {
		if c.namespace() != p.out {
			out[p.key(c)] = strconv.Itoa(c.rv)
		}
	}
	return out
}

// versions is what the source says of a key: versions at which it lived, and at which it was
// deleted.
func (p *past) versions(key delta.Key) (lived, died map[int]change) {
	lived, died = map[int]change{}, map[int]change{}
	for _, c := range p.changes {
		switch {
		case p.key(c) != key:
		case c.gone:
			died[c.rv] = c
		default:
			lived[c.rv] = c
		}
	}
	return lived, died
}

// at reports whether the key lived at a version.
func (p *past) at(key delta.Key, rv int) bool {
	lives := false
	for _, c := range p.changes {
		if c.rv <= rv && p.key(c) == key {
			lives = !c.gone
		}
	}
	return lives
}

// Issue 7, the differential fuzz, through the service and a real log: the folded result equals the
// source, and what is told of a key is a subsequence of its states.
func TestRandomHistoriesReachTheLogThroughFaultsAndFailovers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			p := &past{rng: rand.New(rand.NewPCG(seed, 7)), rv: 100, live: map[string]change{}, wake: make(chan struct{})}
			a := newAPI(t)
			a.onList, a.onWatch = p.list, p.watch
			cfg := quick()
			if seed%2 == 1 { // a third of what happens is of another namespace
				p.out, cfg.Resources[0].Namespaces = "more", []string{"default", "other"}
			}
			nats := embeddedtest.NATS(t).URL()
			_, stop := start(t, cfg, a.URL, nats)
			m := follow(t, nats, pods)
			same := func() bool { return m.readable() && maps.Equal(p.state(), m.live()) }
			m.until(t, "the begin", same)
			for i := range 600 {
				p.write()
				time.Sleep(time.Millisecond) // so that some of it is watched, and some of it listed
				switch i % 200 {
				case 99:
					m.until(t, "the source's state", same)
				case 150: // another leads, in the middle of it
					_, next := start(t, cfg, a.URL, nats)
					stop()
					stop = next
				}
			}
			m.until(t, "the source's state at the end", same)
			p.judge(t, a, m)
		})
	}
}

// judge holds every record against the history.
func (p *past) judge(t *testing.T, a *api, m *mirror) {
	t.Helper()
	if terms := m.kinds(delta.KindTerm); m.resets != 1 || terms[0].Epoch != terms[len(terms)-1].Epoch {
		t.Errorf("%d resets, epochs %d to %d; want one replay of one epoch", m.resets, terms[0].Epoch, terms[len(terms)-1].Epoch)
	}
	last, reasons := map[delta.Key]int{}, map[delta.DeleteReason]int{}
	for _, r := range m.kinds(delta.KindDelta) {
		rv, err := strconv.Atoi(r.RV)
		if err != nil || rv <= last[r.Key] {
			t.Errorf("%s at %s after %d", r.Key, r.RV, last[r.Key])
		}
		last[r.Key] = rv
		if r.Key.Namespace() == p.out {
			t.Errorf("%s is of a namespace that is not mirrored", r.Key)
		}
		lived, died := p.versions(r.Key)
		switch {
		case !r.Tombstone():
			if c, ok := lived[rv]; !ok || r.UID != strconv.Itoa(c.uid) {
				t.Errorf("%s at %d with uid %s was never so", r.Key, rv, r.UID)
			}
		case r.DeleteReason == delta.Observed:
			if _, ok := died[rv]; !ok {
				t.Errorf("%s was not deleted at %d", r.Key, rv)
			}
		case p.at(r.Key, rv):
			t.Errorf("%s is said to be gone at %d, where it lived", r.Key, rv)
		}
		if r.Tombstone() {
			reasons[r.DeleteReason]++
		}
	}
	if reasons[delta.Observed] == 0 {
		t.Error("no deletion was watched: the history is too fast to show anything")
	}
	t.Logf("%d changes, %d deltas, deletions %v, %d terms; %d lists and %d watches asked for", len(p.changes), len(m.kinds(delta.KindDelta)), reasons,
		len(m.kinds(delta.KindTerm)), len(a.of(listed)), len(a.of(watched)))
}
