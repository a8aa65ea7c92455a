package gateway

import (
	"fmt"
	"net/http"
	"time"

	"github.com/deltaplane/deltaplane/services/gateway/answer"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// unreachable answers a read with the last known state while the API server is away, where the
// operator wants that: to who was permitted the same lately, with a warning that tells its age. It
// reports whether it did.
func (s *Service) unreachable(w http.ResponseWriter, r *http.Request) bool {
	if !s.cfg.ServeStale {
		return false
	}
	read, reason := request.Parse(r)
	if reason != "" || read.Verb == request.Watch || read.Match == request.Exact {
		return false
	}
	if s.authority != nil && !s.lately.has(s.keyOf(r, s.attributes(read))) {
		return false
	}
	m, at := s.set.Last(read.Group, read.Resource.Version, read.Resource.Name)
	if m == nil || at.IsZero() || !fits(m, read) || read.Form == request.Table {
		return false
	}
	read.Namespaced = m.Resource.Namespaced
	v := m.View()
	if v.Revision < read.Version || !m.Met(v) {
		return false
	}
	age := time.Since(at).Round(time.Second)
	warning := fmt.Sprintf(`299 - "the API server cannot be reached: this is the state of %v ago"`, age)
	if read.Verb == request.Get {
		o := v.Get(read.Key())
		if o == nil {
			return false
		}
		w.Header().Set("Warning", warning)
		abort(answer.Object(w, read, o))
		return true
	}
	w.Header().Set("Warning", warning)
	more, err := answer.List(w, read, answer.KindOf(m), v, v.Revision, func() {})
	if more {
		m.Keep(v, v.Revision)
	}
	abort(err)
	return true
}
