package gateway

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

const (
	// declaredFor is how long the indexes of a resource, and what the API server said of a field, are
	// believed to stay, declaredWithin how long both are asked, and declaredRetry how long they are
	// not asked again when they did not answer.
	declaredFor    = 15 * time.Second
	declaredWithin = 3 * time.Second
	declaredRetry  = time.Second
)

// declared are the fields of resources by which the index can select and the API server cannot.
// Only an index that somebody has declared makes a field one of them.
type declared struct {
	find func(context.Context, kube.Resource) (map[string]bool, error)

	mu  sync.Mutex
	all map[request.Resource]*declaredOf // guarded by mu
}

// declaredOf are the fields of a resource. What cannot be found out stays as it was.
type declaredOf struct {
	mu     sync.Mutex      // guards the rest
	fields map[string]bool // of indexes, and whether they are only the index's to select by; nil before the first answer
	until  time.Time
	asking chan struct{} // closed when the question under way is over; nil where there is none
}

// knows reports whether all declared fields of a read were such ones when somebody looked last.
func (d *declared) knows(read *request.Read) bool {
	d.mu.Lock()
	one := d.all[read.Resource] // the request names it: nothing is kept of one that nobody looked at
	d.mu.Unlock()
	if one == nil {
		return false
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	return one.has(read)
}

// has reports whether all declared fields of a read are such ones. While that is asked, it goes by
// the answer before, unless that is too old.
func (d *declared) has(ctx context.Context, read *request.Read, r kube.Resource) bool {
	one := d.of(read.Resource)
	one.mu.Lock()
	defer one.mu.Unlock()
	now := time.Now()
	if one.asking == nil && now.After(one.until) {
		one.asking = make(chan struct{})
		go d.ask(context.WithoutCancel(ctx), one, r) // others wait for it too
	}
	if asking := one.asking; asking != nil && (one.fields == nil || now.Sub(one.until) > declaredFor) {
		one.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
		}
		one.mu.Lock()
	}
	return one.has(read)
}

func (d *declared) ask(ctx context.Context, one *declaredOf, r kube.Resource) {
	ctx, cancel := context.WithTimeout(ctx, declaredWithin)
	defer cancel()
	found, err := d.find(ctx, r)
	one.mu.Lock()
	defer one.mu.Unlock()
	one.until = time.Now().Add(declaredRetry)
	if err == nil {
		one.fields, one.until = found, time.Now().Add(declaredFor)
	}
	close(one.asking)
	one.asking = nil
}

func (o *declaredOf) has(read *request.Read) bool {
	return !slices.ContainsFunc(read.Declared, func(field string) bool { return !o.fields[field] })
}

// of are the fields of a mirrored resource.
func (d *declared) of(r request.Resource) *declaredOf {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = map[request.Resource]*declaredOf{}
	}
	if d.all[r] == nil {
		d.all[r] = &declaredOf{}
	}
	return d.all[r]
}

// findDeclared asks the index for the fields of its declared indexes, and the API server whether it
// selects by them.
func (s *Service) findDeclared(ctx context.Context, r kube.Resource) (map[string]bool, error) {
	list, err := s.deps.Index.Indexers(ctx, r.Collection(s.cfg.Cluster).String())
	if err != nil {
		return nil, err
	}
	fields := map[string]bool{}
	for _, i := range list {
		path, ok := strings.CutPrefix(i.Description, "field ")
		if !ok || i.BuiltIn || i.State == client.IndexerFailed {
			continue
		}
		_, err := s.deps.Kube.List(ctx, r.MetadataOnly(), kube.ListOptions{Scope: kube.Scope{FieldSelector: path + "=x"}, Limit: 1, RV: "0"})
		if err != nil && !kube.IsBadRequest(err) {
			return nil, err
		}
		fields[path] = err != nil
	}
	return fields, nil
}

// alone reports whether nobody but the index could answer a read that it does not answer for a
// reason.
func (s *Service) alone(read *request.Read, reason string) bool {
	switch {
	case read == nil:
		return false
	case reason == unlikeSight, read.Scope != nil:
		return true
	case len(read.Declared) == 0, reason == "credentials", reason == "access", reason == "impersonation":
		return false
	}
	return s.declared.knows(read)
}
