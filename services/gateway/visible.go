package gateway

import (
	"context"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/services/gateway/answer"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// limited reports whether a read that is denied may be answered in part.
func (c *caller) limited(read *request.Read, denied string) bool {
	return c.options.Visible && denied == "access" && read.Verb != request.Get && read.Namespace == ""
}

const (
	// askedAtOnce are the namespaces about which the cluster is asked at the same time.
	askedAtOnce = 16
	// aheadWithin is how long a list of what is visible waits to be recent, and a watch for the
	// version that it begins behind.
	aheadWithin = 5 * time.Second
)

// partly finds what a caller may see of a resource of which it may not see all.
func (s *Service) partly(ctx context.Context, who *caller, read *request.Read) (may right, reason string) {
	if !read.Namespaced && !read.Resource.IsNamespaces() {
		return nil, "access"
	}
	want := s.attributes(read)
	scope, err := s.scope(ctx, who, want)
	if err != nil {
		return nil, "access"
	}
	read.Scope = &scope
	return func(ctx context.Context) answer.Verdict {
		again, err := s.scope(ctx, who, want)
		switch {
		case err != nil:
			return answer.End
		case !again.Equal(scope):
			return answer.Expire
		}
		return answer.GoOn
	}, ""
}

// scope is where somebody may do what it wants to: everywhere, or in those of the namespaces that
// role bindings suggest.
func (s *Service) scope(ctx context.Context, who *caller, want access.Attributes) (access.Scope, error) {
	id := who.identity(ctx)
	if id == nil {
		return access.Scope{}, errNobody
	}
	if s.may(ctx, id, want) {
		return access.Scope{All: true}, nil
	}
	suggested, err := s.authority.NamespacesOf(ctx, id, s.cfg.Cluster)
	if err != nil {
		return access.Scope{}, err
	}
	granted := make([]bool, len(suggested))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(askedAtOnce)
	for i, namespace := range suggested {
		group.Go(func() error {
			in := want
			in.Namespace, in.FieldSelector, in.LabelSelector = namespace, "", ""
			var err error
			granted[i], _, err = s.authority.Decide(ctx, id, in)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return access.Scope{}, err
	}
	var out access.Scope
	for i, namespace := range suggested {
		if granted[i] {
			out.Namespaces = append(out.Namespaces, namespace)
		}
	}
	return out, nil
}

// unlikeSight is why a watch is not answered that goes on behind a list of another part.
const unlikeSight = "sight"

// unseen is the answer for a part of a resource that the API server knows nothing of, and that
// cannot be shown now.
func unseen(read *request.Read, reason string) *refusal {
	if reason == unlikeSight || reason == "version" && read.Match == request.Exact {
		return &refusal{http.StatusGone, metav1.StatusReasonExpired, "the state at that resource version, or what was visible of it, is not known any more: list again"}
	}
	what := "what is visible"
	if read.Scope == nil {
		what = "what is selected by an index"
	}
	return &refusal{http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, what + " cannot be shown now: " + reason}
}

// sights is which part of a resource callers were shown last: a watch that goes on behind a list
// must be of the same part, or its reader would never hear of what was visible before. Its zero
// value is empty.
type sights struct {
	mu  sync.Mutex
	all map[sightKey]sight // guarded by mu
}

type sightKey struct {
	caller   string
	resource request.Resource
}

// sight is a part of a resource, shown from a version on.
type sight struct{ part, from uint64 }

// maxSights bounds what is remembered. Who is forgotten is believed.
const maxSights = 16_384

// seesParts reports whether a caller may be shown a part of what it reads: not where everybody may
// read everything.
func (c *caller) seesParts(read *request.Read) bool {
	return c.options.Visible && c.key != "" && read.Namespace == ""
}

func (c *caller) sightOf(read *request.Read) (sightKey, uint64) {
	if read.Scope == nil {
		return sightKey{c.key, read.Resource}, 0
	}
	return sightKey{c.key, read.Resource}, read.Scope.Print()
}

// shown notes what a caller is shown at a version.
func (s *sights) shown(c *caller, read *request.Read, version uint64) {
	if !c.seesParts(read) {
		return
	}
	key, part := c.sightOf(read)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil || len(s.all) >= maxSights {
		s.all = map[sightKey]sight{}
	}
	if was, ok := s.all[key]; ok && was.part == part {
		version = min(version, was.from)
	}
	s.all[key] = sight{part, version}
}

// goesOn reports whether a watch behind a version is of what a list of that version has shown.
func (s *sights) goesOn(c *caller, read *request.Read) bool {
	if !c.seesParts(read) {
		return true
	}
	key, part := c.sightOf(read)
	s.mu.Lock()
	defer s.mu.Unlock()
	was, ok := s.all[key]
	return !ok || was.part == part && read.Version >= was.from
}
