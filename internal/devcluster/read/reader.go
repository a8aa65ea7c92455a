package read

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
	"github.com/deltaplane/deltaplane/internal/devcluster/store"
)

// Page is the result of a list before it is rendered.
type Page struct {
	Items     []*store.Object
	RV        uint64
	Next      string
	Remaining *int64
}

const (
	tooOldContinue = "The provided continue parameter is too old to display a consistent list result. You can start a new list without " +
		"the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing " +
		"with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time " +
		"the first chunk was returned and now may show up in the list."
	tooOldContinueFinal = "The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter."
	tooOldExact         = "The resourceVersion for the provided list is too old."
)

// Reader answers lists from a store. A list at a version from the future waits for it as long as
// freshTimeout.
type Reader struct {
	store        *store.Store
	freshTimeout time.Duration
}

// New makes a reader of a store.
func New(s *store.Store, freshTimeout time.Duration) *Reader {
	return &Reader{store: s, freshTimeout: freshTimeout}
}

// List answers one page. Errors are Status errors.
func (q *Reader) List(ctx context.Context, r *kinds.Resource, o Options) (Page, error) {
	at, start := uint64(0), ""
	if o.token != "" {
		if o.version != "" && o.version != "0" {
			return Page{}, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		tok, err := parsePageToken(o.token)
		if err != nil {
			return Page{}, err
		}
		start = tok.Start
		if tok.RV != latest {
			at = uint64(tok.RV)
		}
	} else if o.version == "0" { // upstream's cache, which any version is of, has no pages
		o.limit = 0
	} else if o.RV > 0 {
		if err := q.Reached(ctx, o.RV); err != nil {
			return Page{}, err
		}
		// A limit without a match has always meant exactly that version.
		if o.match == metav1.ResourceVersionMatchExact || (o.match == "" && o.limit > 0) {
			at = o.RV
		}
	}
	if at > q.store.Version() {
		return Page{}, q.tooLarge(at)
	}
	snap, rv, err := q.store.Snapshot(r, at)
	if err != nil {
		return Page{}, expiredList(o.token != "", start)
	}
	return Collect(snap, rv, start, o), nil
}

// Collect walks a snapshot from a key. Within one namespace keys are written without it, as in page
// tokens.
func Collect(snap *store.Tree, rv uint64, start string, o Options) Page {
	p := Page{RV: rv}
	prefix := ""
	if o.Selector.Namespace != "" {
		prefix = o.Selector.Namespace + "/"
	}
	if o.Selector.single() && start == "" { // looked up by its key, as upstream: no page follows
		o.limit = 0
	}
	from, full, rest := prefix+start, false, int64(0)
	snap.AscendGreaterOrEqual(&store.Object{Key: from}, func(obj *store.Object) bool {
		if !strings.HasPrefix(obj.Key, prefix) {
			return false
		}
		// A page has a next one wherever objects follow, as upstream: be it that none is selected.
		if o.limit > 0 && len(p.Items) == o.limit {
			full = true
			rest++
			// The remaining count is only promised for lists without selectors.
			return o.Selector.empty()
		}
		if !o.Selector.Matches(obj) {
			return true
		}
		p.Items = append(p.Items, obj)
		return true
	})
	if full {
		p.Next = pageToken{RV: int64(rv), Start: strings.TrimPrefix(p.Items[len(p.Items)-1].Key, prefix) + "\x00"}.encode()
		if o.Selector.empty() {
			p.Remaining = &rest
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

// Reached waits, for a little while, until the store has a version.
func (q *Reader) Reached(ctx context.Context, rv uint64) error {
	var late <-chan time.Time
	for {
		cur, moved := q.store.Progress()
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
func (q *Reader) tooLarge(rv uint64) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout,
		Message: fmt.Sprintf("Timeout: Too large resource version: %d, current: %d", rv, q.store.Version()),
		Details: &metav1.StatusDetails{
			RetryAfterSeconds: 1,
			Causes:            []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}},
		},
	}}
}
