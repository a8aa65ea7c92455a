package nodes

import (
	"context"
	"sync"
	"time"

	"github.com/tidwall/gjson"

	"github.com/deltaplane/deltaplane/bench/internal/plane"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// observer is what a watcher of the API server saw, by the names of objects and the
// moments at which events came.
type observer struct {
	mu      sync.Mutex // guards what follows
	renewed map[string]time.Time
	tainted map[string]time.Time // with NoExecute, until it is taken away
	gone    map[string]time.Time // pods that are deleted, or being so
	err     error
	stop    context.CancelFunc
	all     sync.WaitGroup
}

// watchNodes follows nodes, their leases and pods until close.
func watchNodes(ctx context.Context, api *kube.Client) (*observer, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &observer{renewed: map[string]time.Time{}, tainted: map[string]time.Time{}, gone: map[string]time.Time{}, stop: cancel}
	for _, r := range []struct {
		of    kube.Resource
		scope kube.Scope
		see   func(kind, name string, object []byte, at time.Time)
	}{
		{plane.PlaneLease, kube.Scope{Namespace: plane.NodeLeases}, func(_, name string, _ []byte, at time.Time) { s.renewed[name] = at }},
		{plane.PlaneNode, kube.Scope{}, s.node},
		{plane.PlanePod, kube.Scope{Namespace: "default"}, s.pod},
	} {
		page, err := api.List(ctx, r.of, kube.ListOptions{Scope: r.scope})
		if err != nil {
			return s, err
		}
		w, err := api.Watch(ctx, r.of, kube.WatchOptions{Scope: r.scope, RV: page.RV})
		if err != nil {
			return s, err
		}
		s.all.Go(func() {
			defer w.Close()
			for {
				e, err := w.Next()
				at := time.Now()
				s.mu.Lock()
				if err != nil {
					if ctx.Err() == nil {
						s.err = err
					}
					s.mu.Unlock()
					return
				}
				if e.Type != kube.EventBookmark {
					r.see(e.Type, gjson.GetBytes(e.Object, "metadata.name").String(), e.Object, at)
				}
				s.mu.Unlock()
			}
		})
	}
	return s, nil
}

func (s *observer) node(_, name string, object []byte, at time.Time) {
	executing := gjson.GetBytes(object, `spec.taints.#(effect=="NoExecute").key`).Exists()
	switch _, known := s.tainted[name]; {
	case executing && !known:
		s.tainted[name] = at
	case !executing:
		delete(s.tainted, name)
	}
}

func (s *observer) pod(kind, name string, object []byte, at time.Time) {
	if _, known := s.gone[name]; !known && (kind == kube.EventDeleted || gjson.GetBytes(object, "metadata.deletionTimestamp").Exists()) {
		s.gone[name] = at
	}
}

// count asks under the lock whether n of a kind were seen.
func (s *observer) count(of func() int, n int) func() (bool, error) {
	return func() (bool, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return of() == n, s.err
	}
}

func (s *observer) close() {
	s.stop()
	s.all.Wait()
}
