package reflector

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// throng is everything that "*" mirrors of one cluster. It is for one goroutine.
type throng struct {
	s       *Service
	w       *desired
	members map[delta.Collection]*member
	lost    map[delta.Collection]int  // answers in a row without what an earlier process found
	noted   map[delta.Collection]bool // members that were in the note at some time
}

// member is one collection that discovery found.
type member struct {
	r      *reflection
	cancel context.CancelFunc
	done   chan struct{}
	missed int       // answers of discovery without it, one after another
	until  time.Time // once it has vanished: how long its log is kept
}

// vanishAfter is how many answers of discovery in a row must lack a resource: an API server that
// starts learns of its CustomResourceDefinitions one by one.
const vanishAfter = 2

// everything mirrors all that can be watched, now and as it appears; secrets only when they are
// named. events.k8s.io is a second name of the core group's events. It returns when nothing of it
// runs any more.
func (s *Service) everything(ctx context.Context, w *desired) {
	t := &throng{s: s, w: w, members: map[delta.Collection]*member{}, lost: map[delta.Collection]int{}, noted: map[delta.Collection]bool{}}
	defer func() {
		for _, m := range t.members {
			m.cancel()
			<-m.done
		}
	}()
	catalog := s.cluster(w.spec.Cluster).catalog
	b := retry{Backoff: s.cfg.Backoff}
	var failing *reflection // stands for all while none is known
	since, counted := time.Now().Add(-s.cfg.DiscoverEvery), time.Time{}
	for {
		moved := s.change()
		all, asked, err := catalog.all(ctx, since)
		if ctx.Err() != nil {
			return
		}
		wait := s.cfg.DiscoverEvery
		if len(all) == 0 && err != nil {
			if failing == nil {
				failing = s.reflect(w, w.spec, w.origin)
				moved = s.change()
			}
			wait = min(b.fail(kube.RetryAfter(err)), wait)
			failing.fail(ctx, "resolve", err, wait)
		} else {
			b = retry{Backoff: s.cfg.Backoff}
			if err != nil && !asked.Equal(counted) {
				s.slog.LogAttrs(ctx, slog.LevelWarn, "discovery is incomplete", slog.String(telemetry.KeyCluster, w.spec.Cluster), telemetry.Err(err))
			}
			if failing != nil {
				s.drop(func(r *reflection) bool { return r == failing })
				failing = nil
			}
			if !t.take(ctx, all, kube.Undiscovered(err), !asked.Equal(counted)) {
				moved = nil // what failed would be tried again without a pause
			}
			counted = asked
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
			since = asked
		case <-moved: // what is named may be another now
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// take compares what discovery says with the members; false when one could not join. Fresh says
// that the answer is a new one, unknown for which groups it says nothing.
func (t *throng) take(ctx context.Context, all []kube.Resource, unknown func(group string) bool, fresh bool) bool {
	ok := true
	there, served := map[delta.Collection]bool{}, map[delta.Collection]bool{}
	for _, res := range all {
		col := res.Collection(t.w.spec.Cluster)
		there[col] = true
		if !t.wants(res) {
			continue
		}
		served[col] = true
		m := t.members[col]
		if m != nil && !m.until.IsZero() { // it is back
			t.leave(col)
			m = nil
		}
		if m == nil {
			ok = t.join(ctx, col, res) && ok
		} else {
			m.missed = 0
		}
	}
	for col, m := range t.members {
		switch {
		case served[col]:
		case t.s.named(col.Cluster, col.Group, col.Version, col.Resource):
			t.leave(col)
		case !m.until.IsZero():
			if time.Now().After(m.until) {
				t.leave(col)
			}
		case fresh && !unknown(col.Group):
			if m.missed++; m.missed >= vanishAfter {
				t.vanish(ctx, col, m)
			}
		}
	}
	t.recall(ctx, there, unknown, fresh)
	return ok
}

func (t *throng) wants(res kube.Resource) bool {
	return res.Watchable() && !secret(res) && res.Group != "events.k8s.io" &&
		(res.Namespaced || !t.w.spec.narrowed()) && !t.s.named(t.w.spec.Cluster, res.Group, res.Version, res.Name)
}

func (t *throng) join(ctx context.Context, col delta.Collection, res kube.Resource) bool {
	spec := t.w.spec
	spec.Name = col.ResourceName()
	r := t.s.reflect(t.w, spec, reflectorv1.ReflectionOrigin_REFLECTION_ORIGIN_DISCOVERED)
	if err := t.s.adopt(ctx, r, res); err != nil { // tried again with the next answer, or when the reflections change
		t.s.drop(func(o *reflection) bool { return o == r })
		t.s.slog.LogAttrs(ctx, slog.LevelWarn, "a collection that was found cannot be mirrored yet", slog.String(telemetry.KeyCollection, col.String()), telemetry.Err(err))
		return false
	}
	ctx, cancel := context.WithCancel(ctx)
	m := &member{r: r, cancel: cancel, done: make(chan struct{})}
	t.members[col] = m
	t.s.loops.Go(func() {
		defer close(m.done)
		r.run(ctx)
	})
	return true
}

// leave takes a member out of the list once it has ended. When it joins again it is noted again.
func (t *throng) leave(col delta.Collection) {
	m := t.members[col]
	delete(t.members, col)
	delete(t.noted, col)
	m.cancel()
	<-m.done
	t.s.drop(func(r *reflection) bool { return r == m.r })
}

// vanish stops a member that is not served any more. Its log is kept for a while, as tombstones
// are, and then deleted.
func (t *throng) vanish(ctx context.Context, col delta.Collection, m *member) {
	until := time.Now().Add(t.s.cfg.KeepVanished)
	if err := t.giveUp(ctx, col, until); err != nil { // with the next answer, then
		return
	}
	m.cancel()
	<-m.done
	t.s.mu.Lock()
	m.r.vanished = true
	t.s.touch()
	t.s.mu.Unlock()
	m.until = until
	m.r.fail(ctx, "resolve", fmt.Errorf("%w: it has vanished from discovery; its log is kept until %s", kube.ErrNotServed, until.UTC().Format(time.RFC3339)), 0)
}
