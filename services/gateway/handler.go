package gateway

import (
	"context"
	"net/http"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/gateway/answer"
	"github.com/deltaplane/deltaplane/services/gateway/forward"
	"github.com/deltaplane/deltaplane/services/gateway/mirror"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// ServeHTTP implements http.Handler.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r, options, err := request.Unprefixed(r)
	s.monitor.serve(w, r, func(w http.ResponseWriter, r *http.Request) {
		if err != nil {
			s.refuse(w, nil, "fields", &refusal{http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error()})
			return
		}
		s.handle(w, r, options)
	})
}

func (s *Service) handle(w http.ResponseWriter, r *http.Request, options request.Options) {
	who, refused := s.callerOf(r)
	if refused != nil {
		s.refuse(w, nil, "credentials", refused)
		return
	}
	if who.vouch != nil {
		r = r.WithContext(forward.Vouch(r.Context(), who.vouch))
	}
	who.options = options
	if options.Mask != nil && r.Method == http.MethodPut {
		s.refuse(w, nil, "fields", &refusal{
			http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			"an object that was read with some of its fields would lose the others: patch it, or replace it without " + request.FieldsPrefix,
		})
		return
	}
	read, reason := request.Parse(r)
	verb := "other"
	if reason == request.Selector && !s.cfg.IndexSelectors {
		read = nil
	}
	if read != nil {
		verb = string(read.Verb)
		reason = s.fromIndex(w, r, who, read)
	}
	switch {
	case reason == "":
	case s.alone(read, reason): // the API server knows no part of a resource
		s.refuse(w, read, reason, unseen(read, reason))
	default:
		s.metrics.answered.WithLabelValues(verb, "api server", reason).Inc()
		s.forward.ServeHTTP(w, r)
	}
}

// fromIndex answers a read from the index, or says why the API server must.
func (s *Service) fromIndex(w http.ResponseWriter, r *http.Request, who *caller, read *request.Read) (reason string) {
	if read.Verb == request.Get && read.Match == request.Recent { // upstream reads it from etcd
		return "recent"
	}
	if reason = s.set.Unsuitable(r.Context(), read.Group, read.Resource.Version, read.Resource.Name); reason != "" {
		return reason
	}
	may, denied := s.permitted(r, who, read)
	if denied != "" && !who.limited(read, denied) {
		return denied
	}
	m, reason := s.set.Find(r.Context(), read.Group, read.Resource.Version, read.Resource.Name)
	if reason != "" {
		return reason
	}
	if !fits(m, read) {
		return "path"
	}
	if len(read.Declared) > 0 && !s.declared.has(r.Context(), read, m.Resource) {
		return request.Selector
	}
	read.Namespaced = m.Resource.Namespaced
	if denied != "" {
		if may, reason = s.partly(r.Context(), who, read); reason != "" {
			return reason
		}
	}
	kind := answer.KindOf(m)
	read.Mask = who.options.Mask
	if read.Form == request.Table {
		kind.Table = s.tables.of(r.Context(), read.Resource, m.Resource)
		switch {
		case kind.Table != nil:
		case read.Alone() && read.Objects: // nobody else could make the rows
			read.Form = request.Full
		default:
			return "table"
		}
	}
	switch read.Verb {
	case request.Get:
		return s.get(w, r, read, m)
	case request.List:
		return s.list(w, r, who, read, kind, m)
	default:
		return s.watch(w, r, who, read, kind, m, may)
	}
}

// fits reports whether the path is one of the resource: with a namespace where objects have one.
func fits(m *mirror.Mirror, read *request.Read) bool {
	if !m.Resource.Namespaced {
		return read.Namespace == ""
	}
	return read.Namespace != "" || read.Verb != request.Get
}

// within is how long a read waits for the state that it needs.
const within = 20 * time.Millisecond

// reach is a view at a version or later; nil where it does not come soon.
func reach(ctx context.Context, m *mirror.Mirror, version uint64) *mirror.View {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return m.Reach(ctx, version)
}

// state is the view from which a read is answered, and the version it is shown at.
func state(ctx context.Context, m *mirror.Mirror, read *request.Read) (v *mirror.View, version uint64, reason string) {
	switch read.Match {
	case request.Exact:
		if v = m.At(read.Version); v == nil {
			return nil, 0, "version"
		}
		return v, read.Version, ""
	case request.Recent:
		if v, reason = recent(ctx, m, read); v == nil {
			return nil, 0, reason
		}
	default:
		if v = reach(ctx, m, read.Version); v == nil {
			return nil, 0, "version"
		}
	}
	return v, v.Revision, ""
}

// recent is a view that has everything that was acknowledged when the request came. A read that
// nobody else could answer waits for it.
func recent(ctx context.Context, m *mirror.Mirror, read *request.Read) (v *mirror.View, reason string) {
	if read.Alone() {
		version, err := m.Recent(ctx)
		if err != nil {
			return nil, "probe"
		}
		ctx, cancel := context.WithTimeout(ctx, aheadWithin)
		defer cancel()
		if v = m.ReachAhead(ctx, version); v == nil {
			return nil, "recent"
		}
		return v, ""
	}
	if m.Missing() {
		return nil, "missing"
	}
	version, err := m.Recent(ctx)
	if err != nil {
		return nil, "probe"
	}
	v = reach(ctx, m, version)
	m.Missed(v == nil)
	if v == nil {
		return nil, "recent"
	}
	return v, ""
}

func (s *Service) get(w http.ResponseWriter, r *http.Request, read *request.Read, m *mirror.Mirror) (reason string) {
	v, _, reason := state(r.Context(), m, read)
	if v == nil {
		return reason
	}
	o := v.Get(read.Key())
	if o == nil {
		return "not found"
	}
	s.metrics.byIndex(read)
	abort(answer.Object(w, read, o))
	return ""
}

func (s *Service) list(w http.ResponseWriter, r *http.Request, who *caller, read *request.Read, kind answer.Kind, m *mirror.Mirror) (reason string) {
	turn, ok := s.flow.list(r.Context(), who.name(r))
	if !ok {
		s.refuse(w, read, "flow", tooManyLists)
		return ""
	}
	defer turn.done()
	v, version, reason := state(r.Context(), m, read)
	if v == nil {
		return reason
	}
	s.metrics.byIndex(read)
	s.sights.shown(who, read, version)
	more, err := answer.List(w, read, kind, v, version, turn.wrote)
	if more {
		m.Keep(v, version)
	}
	abort(err)
	return ""
}

// abort ends an answer that was begun and cannot be completed, so that nobody takes it for whole.
func abort(err error) {
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

func (s *Service) watch(w http.ResponseWriter, r *http.Request, who *caller, read *request.Read, kind answer.Kind, m *mirror.Mirror, may right) (reason string) {
	ctx := r.Context()
	ended, ok := s.flow.watch(who.name(r))
	if !ok {
		s.refuse(w, read, "flow", tooManyWatches)
		return ""
	}
	defer ended()
	sent := s.monitor.delivered(read.Resource)
	one := &answer.Watch{
		Read: read, Kind: kind, Mirror: m, Drain: s.draining,
		May: func() answer.Verdict {
			if !s.set.Fit(m) {
				return answer.End
			}
			return may(ctx)
		},
		Delivered: func(n int) { sent.Add(float64(n)) },
	}
	switch {
	case read.Match == request.Exact:
		if !s.sights.goesOn(who, read) {
			return unlikeSight
		}
		within, cancel := context.WithTimeout(ctx, aheadWithin)
		one.Events, ok = m.Behind(within, read.Version, read.Namespace)
		if cancel(); !ok {
			return "version"
		}
	case read.Match == request.Recent && !read.Initial:
		if one.View, reason = recent(ctx, m, read); one.View == nil {
			return reason
		}
	default:
		if one.View = reach(ctx, m, read.Version); one.View == nil {
			return "version"
		}
	}
	if one.View != nil {
		one.Events = one.View.History().From(one.View, read.Namespace)
		turn, ok := s.flow.list(ctx, who.name(r))
		if !ok {
			one.Events.Close()
			s.refuse(w, read, "flow", tooManyLists)
			return ""
		}
		defer turn.done()
		one.Begun, one.Wrote = turn.done, turn.wrote
		s.sights.shown(who, read, one.View.Revision)
	}
	if read.Initial {
		one.Marked = func(ctx context.Context) bool { return marked(ctx, m, read) }
	}
	s.metrics.byIndex(read)
	s.metrics.watches.Inc()
	defer s.metrics.watches.Dec()
	if err := one.Run(ctx, w); err != nil && ctx.Err() == nil {
		s.log.Debug("a watch ended", telemetry.Err(err))
	}
	return ""
}

// marked waits until the state is as recent as the end of the initial events must be.
func marked(ctx context.Context, m *mirror.Mirror, read *request.Read) bool {
	version := read.Version
	if read.Match == request.Recent {
		var err error
		if version, err = m.Recent(ctx); err != nil {
			return false
		}
	}
	return m.ReachAhead(ctx, version) != nil
}

// written hears what is written through the gateway.
func (s *Service) written(r *http.Request, at *url.URL) func(forward.Written) {
	p, ok := request.ParsePath(at)
	if !ok {
		return nil
	}
	mirrors := s.set.Written(p.Group, p.Resource.Name)
	if len(mirrors) == 0 {
		return nil
	}
	return func(w forward.Written) {
		for _, m := range mirrors {
			gone := r.Method == http.MethodDelete && p.Name != "" && p.Subresource == "" && w.Gone
			if gone {
				m.Deleted(w.UID)
			}
			switch {
			case w.Version > 0:
				m.Wrote(w.Version)
			case !gone:
				m.WroteSomething(r.Context())
			}
		}
	}
}
