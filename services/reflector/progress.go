package reflector

import (
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// progress is how far a running list has come. The zero value: none runs.
type progress struct {
	began     time.Time
	streaming bool
	objects   int
	pages     int
	// total is how many objects the API server said there are; 0 while it did not say.
	total int
}

// proto is nil while no list runs.
func (p progress) proto(now time.Time) *reflectorv1.ListProgress {
	if p.began.IsZero() {
		return nil
	}
	out := &reflectorv1.ListProgress{
		Objects: int64(p.objects), BeganAt: stamp(p.began), Streaming: p.streaming, Pages: int64(p.pages),
	}
	if s := now.Sub(p.began).Seconds(); s > 0 {
		out.Rate = float64(p.objects) / s
	}
	if p.total > 0 {
		out.Remaining = wrapperspb.Int64(int64(max(p.total-p.objects, 0)))
	}
	return out
}

// listing says that a list begins, or starts over. It meets every object that has no key, and tells
// what events without one told.
func (s *state) listing(streaming bool, now time.Time) {
	s.set(func(v *view) { v.list, v.unnamed = progress{began: now, streaming: streaming}, 0 })
}

// listed says that no list runs any more.
func (s *state) listed() { s.set(func(v *view) { v.list = progress{} }) }

// page counts a page and what the API server says is still to come behind it.
func (s *state) page(remaining int64) {
	s.set(func(v *view) {
		if v.list.pages++; remaining > 0 {
			v.list.total = v.list.objects + int(remaining)
		}
	})
}
