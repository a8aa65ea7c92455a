package reflector

import (
	"context"
	"log/slog"
	"time"

	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// A request for a list stands in the bucket until a list has begun after it. Who leads the
// collection makes its source list now; everybody else only remembers the request, for when it
// leads.

// phase notes where the loop stands, and takes care of a list that is asked for.
func (r *reflection) phase(p reflectorv1.ReflectionState) {
	var began uint64
	var wake bool
	r.state.set(func(v *view) {
		again := v.phase == p
		v.phase = p
		switch p {
		case reflectorv1.ReflectionState_REFLECTION_STATE_LISTING:
			began, v.asked = v.asked, 0
		case reflectorv1.ReflectionState_REFLECTION_STATE_REBUILDING, reflectorv1.ReflectionState_REFLECTION_STATE_WATCHING,
			reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF:
			wake = v.asked != 0 && !again // once a phase: what waits between attempts would not wait
		}
	})
	switch {
	case wake:
		r.retryNow()
	case p == reflectorv1.ReflectionState_REFLECTION_STATE_STANDBY, p == reflectorv1.ReflectionState_REFLECTION_STATE_LISTING:
		select { // what was asked before the list is answered by it, and a standby's leader lists
		case <-r.relist:
		default:
		}
	}
	if began != 0 {
		r.begun(began)
	}
}

// ask notes a request for a list by its revision; 0 takes it back.
func (r *reflection) ask(revision uint64) {
	var wake bool
	r.state.set(func(v *view) {
		v.asked = revision
		wake = revision != 0 && v.phase != reflectorv1.ReflectionState_REFLECTION_STATE_STANDBY
	})
	if wake {
		r.retryNow()
	}
}

// retryNow makes the source list as soon as it can, or a resource that is not found be looked for.
func (r *reflection) retryNow() {
	select {
	case r.relist <- struct{}{}:
	default: // one is asked for already
	}
}

// asked is notified of requests in the bucket.
func (s *Service) asked(collection string, there bool, revision uint64) {
	if !there {
		revision = 0
	}
	s.mu.Lock()
	if s.relists[collection] = revision; !there {
		delete(s.relists, collection)
	}
	s.mu.Unlock()
	for _, r := range s.all() {
		if r.state.get().name == collection {
			r.ask(revision)
		}
	}
}

// listBegan takes the request back. When that fails, it is found again and answered by one more
// list.
func (s *Service) listBegan(collection string, revision uint64) {
	s.loops.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.mirror), 5*time.Second)
		defer cancel()
		if err := s.registry.answered(ctx, keyRelist+"/"+collection, revision); err != nil {
			s.slog.LogAttrs(ctx, slog.LevelWarn, "a request for a list cannot be taken back", slog.String(telemetry.KeyCollection, collection), telemetry.Err(err))
		}
	})
}
