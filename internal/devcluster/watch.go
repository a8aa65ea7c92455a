package devcluster

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// writeLimit is how long a watcher may leave a write unread before it is cut.
	writeLimit = 30 * time.Second
)

// watcher streams the changes of one resource to one client. It pulls from the
// table's history, so it never holds a writer back; one that falls out of the
// history window is cut.
type watcher struct {
	c    *call
	o    listOptions
	out  *bufio.Writer
	ctl  *http.ResponseController
	rows int // table rows sent: only the first carries the columns
}

// handleWatch streams until the client leaves, its timeout ends, or the server stops.
func (a *server) handleWatch(c *call, o listOptions) error {
	wantState := o.rv == 0
	if o.initial != nil {
		wantState = *o.initial
	}
	w := &watcher{c: c, o: o, out: bufio.NewWriterSize(c.w, 32<<10), ctl: http.NewResponseController(c.w)}
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(http.StatusOK)
	if !w.flush() {
		return nil
	}
	// The watch is accepted now; like the real server's, later errors go into the stream.
	if o.initial != nil && wantState {
		if err := a.reader.reached(c.req.Context(), o.rv); err != nil {
			w.fail(err)
			return nil
		}
	}
	from := o.rv
	if wantState {
		from = 0
	} else if from == 0 {
		from = a.store.version()
	}
	t, state, rv, err := a.store.open(c.res, from)
	if err != nil {
		w.fail(apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", from, rv)))
		return nil
	}
	if state != nil && !w.state(state, rv) {
		return nil
	}
	w.follow(a, t, rv)
	return nil
}

// state sends what exists, and the mark that ends it if it was asked for.
func (w *watcher) state(state *tree, rv uint64) bool {
	ok := true
	state.Ascend(func(o *object) bool {
		if w.o.selector.matches(o) {
			ok = w.object(watch.Added, o)
		}
		return ok
	})
	if ok && w.o.initial != nil && *w.o.initial && w.o.bookmarks {
		ok = w.bookmark(rv, true)
	}
	return ok && w.flush()
}

// follow sends events above rv until something ends the watch.
func (w *watcher) follow(a *server, t *table, rv uint64) {
	timeout := w.o.timeout
	if timeout == 0 {
		timeout = a.watchTimeout + rand.N(a.watchTimeout)
	}
	end := time.NewTimer(timeout)
	defer end.Stop()
	marks := time.NewTicker(a.bookmarkEvery - a.bookmarkEvery/10 + rand.N(a.bookmarkEvery/5+1))
	defer marks.Stop()
	for {
		b, err := a.store.pull(w.c.res, t, rv, pullLimit)
		if err != nil {
			return // too slow, or the resource is gone: the client starts over
		}
		for _, e := range b.events {
			if !w.event(e) {
				return
			}
		}
		rv = max(rv, b.rv)
		if len(b.events) > 0 {
			if !w.flush() {
				return
			}
			if len(b.events) == pullLimit {
				continue
			}
		}
		select {
		case <-b.wake:
		case <-marks.C:
			if w.o.bookmarks && !(w.bookmark(max(rv, a.store.quiet(t, rv)), false) && w.flush()) {
				return
			}
		case <-end.C:
			if w.o.bookmarks {
				_ = w.bookmark(rv, false) && w.flush()
			}
			return
		case <-w.c.req.Context().Done():
			return
		case <-a.stopping:
			return
		}
	}
}

// event sends a change as the selection sees it.
func (w *watcher) event(e *event) bool {
	if e.junk != nil {
		_, err := w.out.Write(append(bytes.Clone(e.junk), '\n'))
		return err == nil
	}
	was := e.prev != nil && w.o.selector.matches(e.prev)
	is := e.cur != nil && w.o.selector.matches(e.cur)
	switch {
	case is && was:
		return w.object(watch.Modified, e.cur)
	case is:
		return w.object(watch.Added, e.cur)
	case was:
		return w.object(watch.Deleted, e.departed(w.c.res))
	}
	return true
}

// object writes one event in the form the client asked for.
func (w *watcher) object(kind watch.EventType, o *object) bool {
	raw := o.raw
	var err error
	switch w.c.as {
	case asTable:
		meta := metav1.ListMeta{ResourceVersion: strconv.FormatUint(o.rv, 10)}
		raw, err = marshal(newTableView(w.c.res, []*object{o}, w.o.includeObj, &meta, w.rows == 0))
		w.rows++
	case asPartial:
		raw, err = marshal(partial(o))
	}
	if err != nil {
		return false
	}
	return w.line(kind, raw)
}

// bookmark tells the client that it has seen everything up to rv.
func (w *watcher) bookmark(rv uint64, initialEnd bool) bool {
	var raw []byte
	var err error
	mark := w.c.res.make()
	if initialEnd {
		mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	if raw, err = encode(w.c.res, mark, rv); err != nil {
		return false
	}
	if w.c.as != asObject {
		return w.object(watch.Bookmark, &object{rv: rv, obj: mark, raw: raw})
	}
	return w.line(watch.Bookmark, raw)
}

func (w *watcher) line(kind watch.EventType, raw []byte) bool {
	if w.out.Available() < len(raw) {
		w.deadline()
	}
	fmt.Fprintf(w.out, `{"type":%q,"object":`, kind) // an error sticks to the writer
	if _, err := w.out.Write(raw); err != nil {
		return false
	}
	_, err := w.out.WriteString("}\n")
	return err == nil
}

// fail ends the stream with an ERROR event.
func (w *watcher) fail(err error) {
	status := statusOf(err)
	status.Kind, status.APIVersion = "Status", "v1"
	if raw, err := json.Marshal(status); err == nil {
		_ = w.line(watch.Error, raw) && w.flush()
	}
}

func (w *watcher) flush() bool {
	w.deadline()
	return w.out.Flush() == nil && w.ctl.Flush() == nil
}

// deadline bounds the next write; servers that cannot set one only lose the bound.
func (w *watcher) deadline() {
	_ = w.ctl.SetWriteDeadline(time.Now().Add(writeLimit))
}
