package devcluster

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
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

// list answers one page. Errors are Status errors.
func (a *api) list(ctx context.Context, r *resource, o listOptions) (page, error) {
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
		if err := a.reached(ctx, o.rv); err != nil {
			return page{}, err
		}
		// A limit without a match has always meant exactly that version.
		if o.match == metav1.ResourceVersionMatchExact || (o.match == "" && o.limit > 0) {
			at = o.rv
		}
	}
	if at > a.store.version() {
		return page{}, a.tooLarge(at)
	}
	snap, rv, err := a.store.snapshot(r, at)
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
func (a *api) reached(ctx context.Context, rv uint64) error {
	var late <-chan time.Time
	for {
		a.store.mu.RLock()
		cur, moved := a.store.rv, a.store.moved
		a.store.mu.RUnlock()
		if cur >= rv {
			return nil
		}
		if late == nil {
			t := time.NewTimer(a.cfg.FreshTimeout)
			defer t.Stop()
			late = t.C
		}
		select {
		case <-moved:
		case <-late:
			return a.tooLarge(rv)
		case <-ctx.Done():
			return a.tooLarge(rv)
		}
	}
}

// tooLarge is the answer to a version from the future.
func (a *api) tooLarge(rv uint64) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout,
		Message: fmt.Sprintf("Timeout: Too large resource version: %d, current: %d", rv, a.store.version()),
		Details: &metav1.StatusDetails{
			RetryAfterSeconds: 1,
			Causes:            []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}},
		},
	}}
}

// handleList renders a page as the client asked for it.
func (a *api) handleList(c *call) error {
	o, err := parseListOptions(c.res, c.namespace, "", c.req.URL.Query())
	if err != nil {
		return err
	}
	if o.watch {
		return a.handleWatch(c, o)
	}
	p, err := a.list(c.req.Context(), c.res, o)
	if err != nil {
		return err
	}
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatUint(p.rv, 10), Continue: p.next, RemainingItemCount: p.remaining}
	switch c.as {
	case asTable:
		return c.json(http.StatusOK, newTableView(c.res, p.items, o.includeObj, &meta, true))
	case asPartial:
		return c.json(http.StatusOK, partialList(p.items, meta))
	}
	return c.listOf(p, meta)
}

// listOf writes the items' bytes behind a list header, without decoding them.
func (c *call) listOf(p page, meta metav1.ListMeta) error {
	b, err := marshal(meta)
	if err != nil {
		return err
	}
	size := len(b) + 128
	for _, o := range p.items {
		size += len(o.raw) + 1
	}
	out := make([]byte, 0, size)
	out = fmt.Appendf(out, `{"kind":%q,"apiVersion":%q,"metadata":`, c.res.kind+"List", c.res.apiVersion())
	out = append(append(out, b...), `,"items":[`...)
	for i, o := range p.items {
		if i > 0 {
			out = append(out, ',')
		}
		if c.res.custom {
			out = append(out, o.raw...)
			continue
		}
		out = append(append(out, '{'), bare(c.res, o.raw)...)
	}
	return c.bytes(http.StatusOK, append(out, "]}\n"...))
}
