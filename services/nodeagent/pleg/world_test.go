package pleg_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// world is a runtime that does what the test says.
type world struct {
	mu   sync.Mutex
	pods map[types.UID]*wpod
	// listErr and statusErr fail the calls; a hung pod's status never comes, and a deaf one's does not
	// even end with the context.
	listErr   error
	statusErr map[types.UID]error
	hung      map[types.UID]bool
	deaf      map[types.UID]chan struct{}
	// listDelay is how long a list takes, statusDelay a status: half of it before the answer is made
	// up, half after.
	listDelay, statusDelay func() time.Duration

	// watch is notified of every list that succeeds, as it is made up; the caller holds mu.
	watch  func([]container.Pod)
	lists  int
	asked  map[types.UID]int
	asking map[types.UID]int
	// twice says that a pod was asked about twice at once; most is the most calls under way.
	twice bool
	most  int

	// streams says that there is a stream; hear is the listener, and dead ends the stream.
	streams bool
	hear    func(container.Event)
	dead    chan error
	opened  int
}

type wpod struct {
	containers map[string]container.State
	sandboxes  map[string]bool
	ips        []string
}

func newWorld() *world {
	none := func() time.Duration { return 0 }
	return &world{
		pods: map[types.UID]*wpod{}, statusErr: map[types.UID]error{}, hung: map[types.UID]bool{}, deaf: map[types.UID]chan struct{}{},
		asked: map[types.UID]int{}, asking: map[types.UID]int{}, listDelay: none, statusDelay: none, dead: make(chan error, 1),
	}
}

// do changes the world.
func (w *world) do(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// put makes a pod be exactly so: containers by name and state, sandboxes by the names in ready and
// notReady.
func (w *world) put(uid types.UID, containers map[string]container.State, sandboxes map[string]bool) {
	w.do(func() { w.pods[uid] = &wpod{containers: containers, sandboxes: sandboxes} })
}

type states = map[string]container.State

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (w *world) Pods(ctx context.Context, all bool) ([]container.Pod, error) {
	w.mu.Lock()
	w.lists++
	delay, err := w.listDelay(), w.listErr
	w.mu.Unlock()
	sleep(ctx, delay/2)
	w.mu.Lock()
	var out []container.Pod
	for _, uid := range slices.Sorted(maps.Keys(w.pods)) {
		s := w.status(uid)
		p := container.Pod{UID: uid, Namespace: "default", Name: string(uid)}
		for _, c := range s.Containers {
			p.Containers = append(p.Containers, c.Container)
		}
		for _, b := range s.Sandboxes {
			p.Sandboxes = append(p.Sandboxes, b.Sandbox)
		}
		out = append(out, p)
	}
	if w.watch != nil && err == nil {
		w.watch(out)
	}
	w.mu.Unlock()
	sleep(ctx, delay/2)
	if !all {
		return nil, errors.New("the test's runtime lists all or nothing")
	}
	return out, errors.Join(err, ctx.Err())
}

// status is a pod as it is now. The caller holds mu.
func (w *world) status(uid types.UID) *container.PodStatus {
	out := &container.PodStatus{UID: uid, At: time.Now()}
	p := w.pods[uid]
	if p == nil {
		return out
	}
	out.Namespace, out.Name, out.IPs = "default", string(uid), slices.Clone(p.ips)
	for _, id := range slices.Sorted(maps.Keys(p.containers)) {
		out.Containers = append(out.Containers, container.Status{Container: container.Container{ID: id, Name: id, State: p.containers[id]}})
	}
	for _, id := range slices.Sorted(maps.Keys(p.sandboxes)) {
		out.Sandboxes = append(out.Sandboxes, container.SandboxStatus{Sandbox: container.Sandbox{ID: id, Ready: p.sandboxes[id]}})
	}
	return out
}

func (w *world) PodStatus(ctx context.Context, uid types.UID, _, _ string) (*container.PodStatus, error) {
	w.mu.Lock()
	w.asked[uid]++
	w.asking[uid]++
	w.twice = w.twice || w.asking[uid] > 1
	under := 0
	for _, n := range w.asking {
		under += n
	}
	w.most = max(w.most, under)
	delay, err, hung, deaf := w.statusDelay(), w.statusErr[uid], w.hung[uid], w.deaf[uid]
	w.mu.Unlock()
	defer w.do(func() { w.asking[uid]-- })
	switch {
	case deaf != nil:
		<-deaf
	case hung:
		<-ctx.Done()
	}
	sleep(ctx, delay/2)
	w.mu.Lock()
	out := w.status(uid)
	w.mu.Unlock()
	sleep(ctx, delay/2)
	if err := errors.Join(err, ctx.Err()); err != nil {
		return nil, err
	}
	return out, nil
}

func (w *world) Events(ctx context.Context, hear func(container.Event)) error {
	w.mu.Lock()
	if !w.streams {
		w.mu.Unlock()
		return container.ErrNoEvents
	}
	w.hear = hear
	w.opened++
	w.mu.Unlock()
	defer w.do(func() { w.hear = nil })
	select {
	case err := <-w.dead:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tell sends an event about a container to the listener, with the pod's status when it is asked
// for.
func (w *world) tell(uid types.UID, id string, kind container.EventKind, status bool) {
	w.mu.Lock()
	e := container.Event{ContainerID: id, PodUID: uid, Kind: kind, At: time.Now()}
	if p := w.pods[uid]; p != nil {
		for s := range p.sandboxes {
			e.SandboxID = s
		}
	}
	if status {
		e.Status = w.status(uid)
	}
	hear := w.hear
	w.mu.Unlock()
	if hear != nil {
		hear(e)
	}
}

// listedTwice is a runtime that lists each pod in two halves.
type listedTwice struct{ *world }

func (l *listedTwice) Pods(ctx context.Context, all bool) ([]container.Pod, error) {
	pods, err := l.world.Pods(ctx, all)
	var out []container.Pod
	for _, p := range pods {
		first, second := p, p
		first.Containers, second.Sandboxes = nil, nil
		out = append(out, first, second)
	}
	return out, err
}
