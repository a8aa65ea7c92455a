package pleg_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/pleg"
)

// life plays random lives of containers in a world whose lists fail and take long,
// whose statuses hang, whose stream breaks, drops, delays and reorders events, and
// whose events are read slowly or not at all.
type life struct {
	*harness
	rnd  *rand.Rand
	born int
	// told is what was published of each container, as "pod/container".
	told map[string][]pleg.Kind
	// listed are containers that a list showed, and in which states; gone those that exist no more.
	listed map[string]map[container.State]bool
}

func (l *life) key(uid types.UID, id string) string { return string(uid) + "/" + id }

// happen makes one thing happen in the world.
func (l *life) happen() {
	uid := types.UID(fmt.Sprintf("p%d", l.rnd.IntN(5)))
	kind, id := container.EventUnknown, ""
	l.w.do(func() {
		p := l.w.pods[uid]
		if p == nil {
			p = &wpod{containers: states{}, sandboxes: map[string]bool{}}
			l.w.pods[uid] = p
		}
		ids := slices.Concat(slices.Sorted(maps.Keys(p.containers)), slices.Sorted(maps.Keys(p.sandboxes)))
		if i := l.rnd.IntN(len(ids) + 1); i < len(ids) && len(ids) > 0 {
			id = ids[i]
		}
		_, box := p.sandboxes[id]
		switch state := p.containers[id]; {
		case id == "":
			l.born++
			kind = container.EventCreated
			if id = fmt.Sprintf("c%d", l.born); l.rnd.IntN(4) == 0 {
				id = fmt.Sprintf("s%d", l.born)
				p.sandboxes[id], kind = true, container.EventStarted
			} else {
				p.containers[id] = container.Created
			}
		case box && p.sandboxes[id]:
			p.sandboxes[id], kind = false, container.EventStopped
		case box:
			delete(p.sandboxes, id)
			kind = container.EventDeleted
		case state == container.Created && l.rnd.IntN(5) > 0:
			p.containers[id], kind = running, container.EventStarted
		case state == running:
			p.containers[id], kind = exited, container.EventStopped
		default:
			delete(p.containers, id)
			kind = container.EventDeleted
		}
		if len(p.containers)+len(p.sandboxes) == 0 {
			delete(l.w.pods, uid)
		}
	})
	l.announce(uid, id, kind)
}

// announce makes the stream tell of it: at once, late, without a status, or not at all.
func (l *life) announce(uid types.UID, id string, kind container.EventKind) {
	status, said := l.rnd.IntN(3) > 0, uid
	if !status && l.rnd.IntN(2) == 0 {
		said = ""
	}
	switch l.rnd.IntN(12) {
	case 0: // lost
	case 1, 2: // late, with the status of its time
		l.w.mu.Lock()
		e := container.Event{ContainerID: id, PodUID: said, Kind: kind, At: time.Now()}
		if status {
			e.Status = l.w.status(uid)
		}
		l.w.mu.Unlock()
		late := time.Duration(l.rnd.IntN(3000)) * time.Millisecond
		time.AfterFunc(late, func() {
			l.w.mu.Lock()
			hear := l.w.hear
			l.w.mu.Unlock()
			if hear != nil {
				hear(e)
			}
		})
	default:
		l.w.tell(said, id, kind, status && said != "")
	}
}

// trouble changes what works.
func (l *life) trouble() {
	uid := types.UID(fmt.Sprintf("p%d", l.rnd.IntN(5)))
	upTo := func(d time.Duration) func() time.Duration {
		rnd := rand.New(rand.NewPCG(l.rnd.Uint64(), 0)) // drawn from by several goroutines, under the world's lock
		return func() time.Duration { return time.Duration(rnd.Int64N(int64(d))) }
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	switch l.rnd.IntN(9) {
	case 0:
		l.w.listErr = errors.New("list")
	case 1, 2:
		l.w.listErr = nil
	case 3:
		l.w.statusErr[uid] = errors.New("status")
	case 4:
		l.w.hung[uid] = true
	case 5:
		clear(l.w.statusErr)
		clear(l.w.hung)
	case 6:
		l.w.listDelay = upTo(2 * time.Second)
	case 7:
		l.w.statusDelay = upTo(3 * time.Second)
	case 8:
		if l.w.hear != nil {
			l.w.dead <- errors.New("stream")
			l.w.hear = nil
		}
	}
}

// read takes some events, and checks that the cache was there before them.
func (l *life) read(most int) {
	for ; most > 0 && len(l.Events()) > 0; most-- {
		e := <-l.Events()
		if e.Kind == pleg.PodSync {
			continue
		}
		l.told[l.key(e.PodUID, e.ContainerID)] = append(l.told[l.key(e.PodUID, e.ContainerID)], e.Kind)
		s, err := l.Cache().Get(e.PodUID)
		if err != nil {
			continue // newer than the event
		}
		state, there := seen(s, e.ContainerID)
		switch {
		case e.Kind == pleg.ContainerStarted && there && state != running && state != exited,
			e.Kind == pleg.ContainerDied && there && state != exited,
			e.Kind == pleg.ContainerRemoved && there:
			l.t.Errorf("%v of %s/%s was published, and the cache has it %v", e.Kind, e.PodUID, e.ContainerID, state)
		}
	}
}

// seen is a container's or sandbox's state in a status.
func seen(s *container.PodStatus, id string) (container.State, bool) {
	for _, c := range s.Containers {
		if c.ID == id {
			return c.State, true
		}
	}
	for _, b := range s.Sandboxes {
		if b.ID == id && b.Ready {
			return running, true
		}
		if b.ID == id {
			return exited, true
		}
	}
	return 0, false
}

// settle lets everything work again and time pass, and checks what was published and what the cache
// holds.
func (l *life) settle() {
	l.w.do(func() {
		none := func() time.Duration { return 0 }
		l.w.listErr, l.w.listDelay, l.w.statusDelay = nil, none, none
		clear(l.w.statusErr)
		clear(l.w.hung)
	})
	// A list at least, and the retries after it; then as long as a channel of few events has more to
	// bring.
	l.pass(80 * time.Second)
	for quiet := 0; quiet < 3; quiet++ {
		if len(l.Events()) > 0 {
			quiet = 0
		}
		l.read(1 << 20)
		l.pass(time.Second)
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.w.twice {
		l.t.Error("a pod was asked about twice at once")
	}
	if l.w.most > 8 {
		l.t.Errorf("%d calls at once", l.w.most)
	}
	for i := range 5 {
		uid := types.UID(fmt.Sprintf("p%d", i))
		got, err := l.Cache().Get(uid)
		if err != nil {
			l.t.Errorf("Get(%s) = %v", uid, err)
			continue
		}
		want := l.w.status(uid)
		if fmt.Sprint(got.Containers, got.Sandboxes) != fmt.Sprint(want.Containers, want.Sandboxes) {
			l.t.Errorf("the cache has of %s %v %v,\nthe runtime %v %v", uid, got.Containers, got.Sandboxes, want.Containers, want.Sandboxes)
		}
		for _, o := range want.Containers {
			l.lives(uid, o.ID, o.State)
		}
		for _, b := range want.Sandboxes {
			state := exited
			if b.Ready {
				state = running
			}
			l.lives(uid, b.ID, state)
		}
	}
	for key, kinds := range l.told {
		if !slices.IsSorted(kinds) || len(slices.Compact(slices.Clone(kinds))) != len(kinds) {
			l.t.Errorf("%s: published %v, want each at most once and in the order of life", key, kinds)
		}
	}
}

// lives checks what was published of a container that is there.
func (l *life) lives(uid types.UID, id string, state container.State) {
	kinds := l.told[l.key(uid, id)]
	if slices.Contains(kinds, pleg.ContainerRemoved) ||
		slices.Contains(kinds, pleg.ContainerDied) != (state == exited) ||
		state == running && !slices.Contains(kinds, pleg.ContainerStarted) ||
		state == container.Created && len(kinds) > 0 {
		l.t.Errorf("%s/%s is %v, published %v", uid, id, state, kinds)
	}
}

// owed checks that what a list showed was published in full.
func (l *life) owed() {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	for key, states := range l.listed {
		kinds := l.told[key]
		if states[running] && !slices.Contains(kinds, pleg.ContainerStarted) {
			l.t.Errorf("%s: a list showed it running, published %v", key, kinds)
		}
		if states[exited] && !slices.Contains(kinds, pleg.ContainerDied) {
			l.t.Errorf("%s: a list showed it exited, published %v", key, kinds)
		}
		var uid, id string
		fmt.Sscanf(key, "%2s/%s", &uid, &id)
		if p := l.w.pods[types.UID(uid)]; p != nil {
			if _, ok := p.containers[id]; ok {
				continue
			}
			if _, ok := p.sandboxes[id]; ok {
				continue
			}
		}
		if !slices.Contains(kinds, pleg.ContainerDied) || !slices.Contains(kinds, pleg.ContainerRemoved) {
			l.t.Errorf("%s: a list showed it and it is gone, published %v", key, kinds)
		}
	}
}

func play(t *testing.T, seed uint64, streams bool) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("seed %d, streams %t", seed, streams)
		}
	}()
	inBubble(t, pleg.Config{Capacity: 4, SlowPeriod: time.Minute, StreamRetry: time.Minute, NoStream: !streams}, func(h *harness) {
		l := &life{
			harness: h, rnd: rand.New(rand.NewPCG(seed, 7)), told: map[string][]pleg.Kind{},
			listed: map[string]map[container.State]bool{},
		}
		h.w.streams = streams
		h.w.watch = func(pods []container.Pod) {
			for _, p := range pods {
				s := h.w.status(p.UID)
				for _, c := range slices.Concat(slices.Sorted(maps.Keys(h.w.pods[p.UID].containers)), slices.Sorted(maps.Keys(h.w.pods[p.UID].sandboxes))) {
					state, _ := seen(s, c)
					if l.listed[l.key(p.UID, c)] == nil {
						l.listed[l.key(p.UID, c)] = map[container.State]bool{}
					}
					l.listed[l.key(p.UID, c)][state] = true
				}
			}
		}
		h.start()
		for range 100 + l.rnd.IntN(200) {
			switch l.rnd.IntN(10) {
			case 0:
				l.trouble()
			case 1:
				uid := types.UID(fmt.Sprintf("p%d", l.rnd.IntN(5)))
				if l.rnd.IntN(2) == 0 {
					h.RequestRelist(uid)
				} else {
					h.RequestReinspect(uid)
				}
			case 2, 3:
				l.read(l.rnd.IntN(4))
			case 4, 5, 6:
				time.Sleep(time.Duration(l.rnd.IntN(2500)) * time.Millisecond)
			default:
				l.happen()
			}
		}
		synctest.Wait()
		l.settle()
		if !streams {
			l.owed()
		}
	})
}

func TestRandomHistoriesPublishEveryChangeAndKeepTheCacheRight(t *testing.T) {
	t.Parallel()
	rounds := uint64(100)
	if testing.Short() {
		rounds = 10
	}
	for _, streams := range []bool{false, true} {
		t.Run(fmt.Sprintf("streams %t", streams), func(t *testing.T) {
			t.Parallel()
			for seed := range rounds {
				play(t, seed, streams)
			}
		})
	}
}

func FuzzLife(f *testing.F) {
	f.Add(uint64(101), true)
	f.Add(uint64(339), true)
	f.Add(uint64(3), false)
	f.Fuzz(func(t *testing.T, seed uint64, streams bool) { play(t, seed, streams) })
}
