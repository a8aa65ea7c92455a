package gateway

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/services/gateway/answer"
	"github.com/deltaplane/deltaplane/services/gateway/forward"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// right says whether a watch goes on that was permitted.
type right func(context.Context) answer.Verdict

// permitted says whether the cluster lets a caller read that. Who is not known, or may not, is for
// the API server to refuse.
func (s *Service) permitted(r *http.Request, who *caller, read *request.Read) (may right, reason string) {
	if who.unknown != "" {
		return nil, who.unknown
	}
	if s.authority == nil {
		return func(context.Context) answer.Verdict { return answer.GoOn }, ""
	}
	want := s.attributes(read)
	id := who.identity(r.Context())
	if id == nil {
		return nil, "access"
	}
	who.key = id.Name()
	if !s.may(r.Context(), id, want) {
		return nil, "access"
	}
	may = func(ctx context.Context) answer.Verdict {
		if id := who.identity(ctx); id != nil && s.may(ctx, id, want) {
			return answer.GoOn
		}
		return answer.End
	}
	if s.cfg.ServeStale {
		s.lately.note(s.keyOf(r, want))
	}
	return may, ""
}

// bearer is the token of a request, as API servers read it. A request with other credentials beside
// it is none to be judged here.
func bearer(h http.Header) (string, bool) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(strings.TrimSpace(values[0]), " ")
	return token, ok && strings.EqualFold(scheme, "bearer") && token != "" && !strings.Contains(token, " ")
}

// attributes are what a read wants to do, as an API server understands its request.
func (s *Service) attributes(read *request.Read) access.Attributes {
	a := access.Attributes{
		Cluster: s.cfg.Cluster, Verb: string(read.Verb), Group: read.Group, Version: read.Resource.Version, Resource: read.Resource.Name,
		Namespace: read.Namespace, Name: read.Name, FieldSelector: read.FieldText, LabelSelector: read.LabelText,
	}
	if read.Resource.IsNamespaces() {
		a.Namespace = read.Name // a namespace is within itself
	}
	if a.Name == "" {
		a.Name = read.Single()
	}
	return a
}

// may asks for the right to all of the namespace first, which is what most have: one answer does
// for all selectors.
func (s *Service) may(ctx context.Context, id *access.Identity, want access.Attributes) bool {
	wide := want
	wide.FieldSelector, wide.LabelSelector = "", ""
	if want.Verb != string(request.Get) {
		wide.Name = ""
	}
	allowed, _, err := s.authority.Decide(ctx, id, wide)
	if err == nil && !allowed && wide != want {
		allowed, _, err = s.authority.Decide(ctx, id, want)
	}
	return err == nil && allowed
}

// lately are the reads that were permitted within the last hour, for when the cluster cannot be
// asked. Its zero value is empty.
type lately struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]time.Time // guarded by mu
}

const (
	latelyFor = time.Hour
	maxLately = 50_000
)

// keyOf stands for who asks for what. Of whom the gateway vouches for, the headers that are passed
// on are its own.
func (s *Service) keyOf(r *http.Request, want access.Attributes) [sha256.Size]byte {
	sum := sha256.New()
	if id := forward.Vouched(r.Context()); id != nil {
		_, _ = fmt.Fprintf(sum, "vouched %s %+v", id.Key(), want)
		if s.cfg.ClientCertificates == Impersonate {
			return [sha256.Size]byte(sum.Sum(nil))
		}
	} else {
		_, _ = fmt.Fprintf(sum, "%q %+v", r.Header.Values("Authorization"), want)
	}
	for name, values := range r.Header {
		if strings.HasPrefix(name, impersonate) {
			_, _ = fmt.Fprintf(sum, " %q %q", name, values)
		}
	}
	return [sha256.Size]byte(sum.Sum(nil))
}

func (l *lately) note(key [sha256.Size]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[[sha256.Size]byte]time.Time{}
	}
	if _, known := l.all[key]; known || len(l.all) < maxLately {
		l.all[key] = time.Now()
	}
}

func (l *lately) has(key [sha256.Size]byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.all[key]
	return ok && time.Since(at) < latelyFor
}

// expire forgets what is too long ago, until ctx ends.
func (l *lately) expire(ctx context.Context) {
	for attempt.Sleep(ctx, time.Minute) {
		l.mu.Lock()
		for key, at := range l.all {
			if time.Since(at) > latelyFor {
				delete(l.all, key)
			}
		}
		l.mu.Unlock()
	}
}
