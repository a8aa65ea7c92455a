package devcluster

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// page is the result of a list before it is rendered.
type page struct {
	items     []*object
	rv        uint64
	next      string
	remaining *int64
}

const (
	tooOldContinue = "The provided continue parameter is too old to display a consistent list result. You can start a new list without " +
		"the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing " +
		"with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time " +
		"the first chunk was returned and now may show up in the list."
	tooOldContinueFinal = "The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter."
	tooOldExact         = "The resourceVersion for the provided list is too old."
)

// reader answers lists from a store. A list at a version from the future waits for it as long as
// freshTimeout.
type reader struct {
	store        *store
	freshTimeout time.Duration
}

func newReader(s *store, freshTimeout time.Duration) *reader {
	return &reader{store: s, freshTimeout: freshTimeout}
}

// list answers one page. Errors are Status errors.
func (q *reader) list(ctx context.Context, r *resource, o listOptions) (page, error) {
	at, start := uint64(0), ""
	if o.token != "" {
		if o.version != "" && o.version != "0" {
			return page{}, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		tok, err := parsePageToken(o.token)
		if err != nil {
			return page{}, err
		}
		start = tok.Start
		if tok.RV != latest {
			at = uint64(tok.RV)
		}
	} else if o.rv > 0 {
		if err := q.reached(ctx, o.rv); err != nil {
			return page{}, err
		}
		// A limit without a match has always meant exactly that version.
		if o.match == metav1.ResourceVersionMatchExact || (o.match == "" && o.limit > 0) {
			at = o.rv
		}
	}
	if at > q.store.version() {
		return page{}, q.tooLarge(at)
	}
	snap, rv, err := q.store.snapshot(r, at)
	if err != nil {
		return page{}, expiredList(o.token != "", start)
	}
	return collect(snap, rv, start, o), nil
}

// collect walks a snapshot from a key.
func collect(snap *tree, rv uint64, start string, o listOptions) page {
	p := page{rv: rv}
	prefix := ""
	if o.selector.namespace != "" {
		prefix = o.selector.namespace + "/"
	}
	from, full, rest := max(start, prefix), false, int64(0)
	snap.AscendGreaterOrEqual(&object{key: from}, func(obj *object) bool {
		if !strings.HasPrefix(obj.key, prefix) {
			return false
		}
		if !o.selector.matches(obj) {
			return true
		}
		if o.limit > 0 && len(p.items) == o.limit {
			full = true
			rest++
			// The remaining count is only promised for lists without selectors.
			return o.selector.empty()
		}
		p.items = append(p.items, obj)
		return true
	})
	if full {
		p.next = pageToken{RV: int64(rv), Start: p.items[len(p.items)-1].key + "\x00"}.encode()
		if o.selector.empty() {
			p.remaining = &rest
		}
	}
	return p
}

// expiredList is the error for a snapshot that was compacted away.
func expiredList(continued bool, start string) error {
	if !continued {
		return apierrors.NewResourceExpired(tooOldExact)
	}
	err := apierrors.NewResourceExpired(tooOldContinue)
	err.ErrStatus.ListMeta.Continue = pageToken{RV: latest, Start: start}.encode()
	return err
}

// reached waits, for a little while, until the store has a version.
func (q *reader) reached(ctx context.Context, rv uint64) error {
	var late <-chan time.Time
	for {
		cur, moved := q.store.progress()
		if cur >= rv {
			return nil
		}
		if late == nil {
			t := time.NewTimer(q.freshTimeout)
			defer t.Stop()
			late = t.C
		}
		select {
		case <-moved:
		case <-late:
			return q.tooLarge(rv)
		case <-ctx.Done():
			return q.tooLarge(rv)
		}
	}
}

// tooLarge is the answer to a version from the future.
func (q *reader) tooLarge(rv uint64) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout,
		Message: fmt.Sprintf("Timeout: Too large resource version: %d, current: %d", rv, q.store.version()),
		Details: &metav1.StatusDetails{
			RetryAfterSeconds: 1,
			Causes:            []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}},
		},
	}}
}
