package kube

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/tidwall/gjson"

	"github.com/deltaplane/deltaplane/internal/jsonscan"
)

// Scope narrows a list or a watch.
type Scope struct {
	// Namespace; empty means all.
	Namespace string
	// LabelSelector and FieldSelector as kubectl takes them.
	LabelSelector, FieldSelector string
}

func (s Scope) query() url.Values {
	q := url.Values{}
	setQuery(q, "labelSelector", s.LabelSelector)
	setQuery(q, "fieldSelector", s.FieldSelector)
	return q
}

func setQuery(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

// NotOlderThan is the resourceVersionMatch under which a list may be newer than asked for, but
// never older.
const NotOlderThan = "NotOlderThan"

// ListOptions of one request. A continuation carries neither RV nor Match.
type ListOptions struct {
	Scope
	// Limit is the page size; 0 asks for everything at once.
	Limit int
	// Continue is the token of the page before.
	Continue string
	// RV and Match: "" is the most recent state, "0" any, another with NotOlderThan a bound.
	RV, Match string
}

// Page is one answer to a list.
type Page struct {
	RV       string
	Continue string
	// Remaining is the server's estimate of what follows; 0 when it does not say.
	Remaining int64
	// Items in order, each on its own so that one that is kept keeps no page alive. They lack kind
	// and apiVersion for built-in types. [Client.ListEach] leaves them out.
	Items [][]byte
}

// ListKind asks for the kind that the API server gives lists of a resource.
func (c *Client) ListKind(ctx context.Context, r Resource) (string, error) {
	path := r.path("", "", "")
	body, err := c.do(ctx, request{method: http.MethodGet, path: path, query: url.Values{"limit": {"1"}}})
	if err != nil {
		return "", err
	}
	kind := gjson.GetBytes(body, "kind").String()
	if kind == "" {
		return "", fmt.Errorf("%w: GET %s: the list has no kind", ErrBadAnswer, path)
	}
	return kind, nil
}

// WatchOptions of one watch.
type WatchOptions struct {
	Scope
	// RV to start behind.
	RV string
	// Initial asks for a streaming start: the whole state not older than RV as ADDED events, then a
	// bookmark of which [InitialEnd] is true, then what changes. A server that cannot answers 422,
	// one that does not know the parameters may leave the bookmark out.
	Initial bool
	// Timeout after which the server closes the watch; sent in whole seconds. One that a server that
	// hangs has not closed by then and a tenth (at least a second) more fails with
	// [context.DeadlineExceeded].
	Timeout time.Duration
}

// Event types of a watch. An ERROR becomes an error of [Watch.Next].
const (
	EventAdded    = "ADDED"
	EventModified = "MODIFIED"
	EventDeleted  = "DELETED"
	EventBookmark = "BOOKMARK"
)

// ErrBadEvent says that one event of a watch could not be read; the watch goes on.
var ErrBadEvent = errors.New("kube: event is not readable")

// Event is one event of a watch. Object belongs to the watch and holds until the next call of Next.
type Event struct {
	Type   string
	Object []byte
}

// Watch is an open watch. It is for one goroutine, but Close may be called by any.
type Watch struct {
	resp   *http.Response
	cancel context.CancelFunc
	r      *bufio.Reader
	buf    []byte
	path   string
}

// Watch opens a watch with bookmarks. It ends when ctx does. Errors are those of [Client.List].
func (c *Client) Watch(ctx context.Context, r Resource, o WatchOptions) (*Watch, error) {
	q := o.query()
	q.Set("watch", "true")
	q.Set("allowWatchBookmarks", "true")
	setQuery(q, "resourceVersion", o.RV)
	if o.Initial {
		q.Set("sendInitialEvents", "true")
		q.Set("resourceVersionMatch", NotOlderThan)
	}
	if o.Timeout > 0 {
		q.Set("timeoutSeconds", strconv.Itoa(int(o.Timeout/time.Second)))
	}
	req := request{method: http.MethodGet, path: r.path(o.Namespace, "", ""), query: q, accept: r.accept(false)}
	cancel := func() {}
	if o.Timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, o.Timeout+max(o.Timeout/10, time.Second))
	}
	resp, err := c.send(ctx, req)
	if err != nil {
		cancel()
		return nil, err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		defer cancel()
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			return nil, fmt.Errorf("kube: watch %s: %w", req.path, err)
		}
		e := newStatusError(req, resp, body)
		e.Verb = "WATCH"
		return nil, e
	}
	return &Watch{resp: resp, cancel: cancel, r: bufio.NewReaderSize(resp.Body, 64<<10), path: req.path}, nil
}

// Close ends the watch.
func (w *Watch) Close() {
	w.cancel()
	_ = w.resp.Body.Close()
}

// InitialEnd reports whether a bookmark ends a streaming start.
func InitialEnd(bookmark []byte) bool {
	return gjson.GetBytes(bookmark, `metadata.annotations.k8s\.io/initial-events-end`).String() == "true"
}

// Next waits for the next event. Errors: [io.EOF] when the server closed the watch cleanly;
// [StatusError] for an ERROR event; one that wraps [ErrBadEvent] for an event that cannot be read,
// after which Next may be called again; else the connection's.
func (w *Watch) Next() (Event, error) {
	line, err := w.line()
	if err != nil {
		return Event{}, err
	}
	var e Event
	err = jsonscan.Members(line, func(_, _ int, key, value []byte) error {
		switch string(key) {
		case "type":
			var err error
			e.Type, err = jsonscan.Unquote(value)
			return err
		case "object":
			e.Object = value
		}
		return nil
	})
	switch {
	case err != nil:
		return Event{}, fmt.Errorf("%w: watch %s: %w", ErrBadEvent, w.path, err)
	case e.Type == "ERROR":
		s := parseStatus(e.Object)
		s.Verb, s.Path = "WATCH", w.path
		if s.Code == 0 {
			s.Code = http.StatusInternalServerError
		}
		return Event{}, s
	case e.Object == nil:
		return Event{}, fmt.Errorf("%w: watch %s: no object", ErrBadEvent, w.path)
	}
	return e, nil
}

// line reads one event; the API server separates them by newlines and writes none inside.
func (w *Watch) line() ([]byte, error) {
	w.buf = w.buf[:0]
	for {
		part, err := w.r.ReadSlice('\n')
		if err == nil && len(w.buf) == 0 {
			if part = bytes.TrimSpace(part); len(part) == 0 {
				continue
			}
			return part, nil
		}
		w.buf = append(w.buf, part...)
		switch {
		case len(w.buf) > maxBody:
			return nil, fmt.Errorf("kube: watch %s: an event is larger than %d bytes", w.path, maxBody)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(bytes.TrimSpace(w.buf)) > 0:
			return nil, fmt.Errorf("kube: watch %s: %w", w.path, io.ErrUnexpectedEOF)
		case errors.Is(err, io.EOF):
			return nil, io.EOF
		case err != nil:
			return nil, fmt.Errorf("kube: watch %s: %w", w.path, err)
		}
		if line := bytes.TrimSpace(w.buf); len(line) > 0 {
			return line, nil
		}
		w.buf = w.buf[:0]
	}
}
