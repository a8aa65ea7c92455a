package nodeagent

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// index is what is asked of a [client.Index].
type index interface {
	Watch(ctx context.Context, collection string, o client.WatchOptions) iter.Seq2[client.Event, error]
}

// nodeIndex is the index of pods by spec.nodeName.
const nodeIndex = "node"

// changeKind says what the source tells the loop.
type changeKind uint8

const (
	// changeSet: the pod is bound to this node, in this version.
	changeSet changeKind = iota + 1
	// changeRemoved: the pod is gone, and the API server says so too, or nothing of it runs here.
	changeRemoved
	// changeOrphan: what the runtime runs under this UID is no pod of this node.
	changeOrphan
	// changeSynced: every pod bound to this node has been told at least once.
	changeSynced
)

// change is one thing that the loop must know of the pods bound to this node.
type change struct {
	kind changeKind
	pod  *corev1.Pod // of changeSet and changeRemoved
	uid  types.UID
}

// source follows the pods bound to a node. It tells the loop of a removal only
// when it is certain: the index may have restarted, lag, or be another replica, so
// what only vanished from it is asked of the API server first ([doubts]).
type source struct {
	index      index
	collection string
	node       string
	live       live
	settled    func(types.UID) bool // nothing of the pod runs or ever will
	out        chan change
	log        *slog.Logger
	retry      time.Duration

	order sync.Mutex // held from taking something in until it was sent, so that the loop hears it in that order

	mu      sync.Mutex // guards what follows
	known   map[string]*corev1.Pod
	doubts  map[types.UID]*doubt
	ended   map[types.UID]time.Time // when pods were found to be gone for certain
	synced  bool
	watched bool   // the watch is past its initial state
	epoch   uint64 // of the last complete state
	wake    chan struct{}
}

func newSource(x index, api live, cluster, node string, settled func(types.UID) bool, log *slog.Logger) *source {
	return &source{
		index: x, collection: podsOf(cluster).String(), node: node, live: api, settled: settled, log: log, retry: 500 * time.Millisecond,
		out: make(chan change, 64), known: map[string]*corev1.Pod{}, doubts: map[types.UID]*doubt{}, ended: map[types.UID]time.Time{}, wake: make(chan struct{}, 1),
	}
}

// ready is nil once the pods of this node are known and followed.
func (s *source) ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.synced:
		return fmt.Errorf("the pods of node %s have not been read yet", s.node)
	case !s.watched:
		return fmt.Errorf("the index is away: going on with %d pods known", len(s.known))
	}
	return nil
}

// watch follows the index until ctx ends. A collection that is not served yet is asked for again.
func (s *source) watch(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		s.log.Warn("pods cannot be watched yet", telemetry.Err(err))
		select {
		case <-ctx.Done():
		case <-time.After(s.retry):
		}
	}
}

// staleAfter is how long the pods may be out of sight before somebody is notified.
const staleAfter = 10 * time.Second

// warnWhenStale says when the pods have not been followed for a while, once, and when they are
// again: the client tries for ever to reach an index, in silence.
func (s *source) warnWhenStale(ctx context.Context) {
	tick := time.NewTicker(staleAfter)
	defer tick.Stop()
	var was, told bool // away at the last look
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := s.ready()
		switch {
		case err != nil && was && !told:
			s.log.Warn("pods are not followed", telemetry.Err(err))
			told = true
		case err == nil && told:
			s.log.Info("pods are followed again")
			told = false
		}
		was = err != nil
	}
}

// follow reads one watch to its end.
func (s *source) follow(ctx context.Context) error {
	initial := map[string]*corev1.Pod{} // nil once the initial state is complete
	s.setWatched(false)
	defer s.setWatched(false)
	for e, err := range s.index.Watch(ctx, s.collection, client.WatchOptions{Index: nodeIndex, Value: s.node, Log: s.log}) {
		if err != nil {
			return err
		}
		switch e.Type {
		case client.EventGap:
			s.log.Info("watch of pods starts over", slog.String(telemetry.KeyReason, e.Reason))
			initial = map[string]*corev1.Pod{}
			s.setWatched(false)
		case client.EventAdded, client.EventUpdated:
			pod, err := decode(e.Object.Payload)
			if err != nil {
				// What was known of it holds; the next version may be readable.
				s.log.Error("pod cannot be read", slog.String(telemetry.KeyKey, e.Object.Key), telemetry.Err(err))
				if pod = s.get(e.Object.Key); pod == nil {
					continue
				}
			}
			switch {
			case initial != nil:
				initial[e.Object.Key] = pod
			case !s.stale(e.Object.Key, pod):
				s.set(ctx, e.Object.Key, pod)
			}
		case client.EventDeleted:
			if initial != nil {
				delete(initial, e.Object.Key)
			} else {
				s.vanished(ctx, e.Object.Key)
			}
		case client.EventInitialEnd:
			s.complete(ctx, initial, e.Revision.Epoch)
			initial = nil
		}
	}
	return nil
}

// complete takes in an initial state. An older state than what is known, as
// another replica may tell after a gap, takes nothing back.
func (s *source) complete(ctx context.Context, initial map[string]*corev1.Pod, epoch uint64) {
	fresh := s.newcomers(ctx, initial)
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	again := s.epoch == epoch // versions compare only within an epoch
	s.epoch = epoch
	missing, changed := []string{}, fresh
	for key, old := range s.known {
		now := initial[key]
		switch {
		case now == nil:
			missing = append(missing, key)
			if !again {
				old = old.DeepCopy()
				old.ResourceVersion = "" // of an epoch that is over: it says nothing
				s.known[key] = old
			}
		case now.UID != old.UID:
			if fresh[key] == nil {
				missing = append(missing, key)
			}
		case !again || !older(now, old):
			if changed == nil {
				changed = map[string]*corev1.Pod{}
			}
			changed[key] = now
		}
	}
	s.mu.Unlock()
	for _, key := range missing {
		s.vanished(ctx, key)
	}
	for key, pod := range changed {
		s.set(ctx, key, pod)
	}
	s.mu.Lock()
	first := !s.synced
	s.synced, s.watched = true, true
	s.mu.Unlock()
	if first {
		s.send(ctx, change{kind: changeSynced})
	}
}

// endedFor is how long a pod that is gone for certain is remembered: longer than any index is
// behind.
const endedFor = 10 * time.Minute

// stale reports whether an event is one that an index sends that is behind, such as another replica
// after a gap: of a pod that is gone for certain, or older than what is known under its name.
func (s *source) stale(key string, pod *corev1.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, gone := s.ended[pod.UID]
	known := s.known[key]
	return gone || known != nil && older(pod, known)
}

// end remembers that a pod is gone for certain. The mutex is held.
func (s *source) end(uid types.UID) {
	now := time.Now()
	for uid, at := range s.ended {
		if now.Sub(at) > endedFor {
			delete(s.ended, uid)
		}
	}
	s.ended[uid] = now
}

// set takes in a version of a pod.
func (s *source) set(ctx context.Context, key string, pod *corev1.Pod) {
	if pod.Spec.NodeName != s.node {
		return // the index was asked for this node's; whatever this is, it is not ours to run
	}
	s.order.Lock()
	defer s.order.Unlock()
	s.mu.Lock()
	old := s.known[key]
	s.known[key] = pod
	delete(s.doubts, pod.UID)
	delete(s.ended, pod.UID)
	if old != nil && old.UID != pod.UID {
		s.end(old.UID)
	}
	s.mu.Unlock()
	if old != nil && old.UID != pod.UID {
		// One name holds one pod: that there is a new one proves that the old one is gone.
		s.send(ctx, change{kind: changeRemoved, pod: old, uid: old.UID})
	}
	if old != nil && old.UID == pod.UID && old.ResourceVersion == pod.ResourceVersion {
		return
	}
	s.send(ctx, change{kind: changeSet, pod: pod, uid: pod.UID})
}

// vanished takes in that the index no longer has a pod.
func (s *source) vanished(ctx context.Context, key string) {
	pod := s.get(key)
	if pod == nil {
		return
	}
	if s.settled(pod.UID) {
		s.drop(ctx, pod)
		return
	}
	s.doubt(pod.Namespace, pod.Name, pod.UID)
}

// drop forgets a pod that is gone for certain.
func (s *source) drop(ctx context.Context, pod *corev1.Pod) {
	s.order.Lock()
	defer s.order.Unlock()
	key := pod.Namespace + "/" + pod.Name
	s.mu.Lock()
	if known := s.known[key]; known != nil && known.UID == pod.UID {
		delete(s.known, key)
	}
	delete(s.doubts, pod.UID)
	s.end(pod.UID)
	s.mu.Unlock()
	s.send(ctx, change{kind: changeRemoved, pod: pod, uid: pod.UID})
}

func (s *source) get(key string) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[key]
}

func (s *source) setWatched(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched = on
}

func (s *source) send(ctx context.Context, c change) {
	select {
	case s.out <- c:
	case <-ctx.Done():
	}
}

// older reports whether a is an older version than b of one object, if that can be told.
func older(a, b *corev1.Pod) bool {
	x, err := delta.ParseRV(a.ResourceVersion)
	if err != nil {
		return false
	}
	y, err := delta.ParseRV(b.ResourceVersion)
	return err == nil && delta.Compare(x, y) < 0
}

func decode(raw []byte) (*corev1.Pod, error) {
	pod := new(corev1.Pod)
	if err := json.Unmarshal(raw, pod); err != nil {
		return nil, fmt.Errorf("nodeagent: pod: %w", err)
	}
	if pod.UID == "" || pod.Name == "" {
		return nil, fmt.Errorf("nodeagent: pod %q has no name or UID", pod.Namespace+"/"+pod.Name)
	}
	return pod, nil
}
