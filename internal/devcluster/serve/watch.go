package serve

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

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
	"github.com/deltaplane/deltaplane/internal/devcluster/read"
	"github.com/deltaplane/deltaplane/internal/devcluster/store"
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
	o    read.Options
	out  *bufio.Writer
	ctl  *http.ResponseController
	rows int // table rows sent: only the first carries the columns
}

// handleWatch streams until the client leaves, its timeout ends, or the server stops.
func (a *Server) handleWatch(c *call, o read.Options) error {
	wantState := o.RV == 0
	if o.Initial != nil {
		wantState = *o.Initial
	}
	w := &watcher{c: c, o: o, out: bufio.NewWriterSize(c.w, 32<<10), ctl: http.NewResponseController(c.w)}
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(http.StatusOK)
	if !w.flush() {
		return nil
	}
	// The watch is accepted now; like the real server's, later errors go into the stream.
	if o.Initial != nil && wantState {
		if err := a.reader.Reached(c.req.Context(), o.RV); err != nil {
			w.fail(err)
			return nil
		}
	}
	from := o.RV
	if wantState {
		from = 0
	} else if from == 0 {
		from = a.store.Version()
	}
	t, state, rv, err := a.store.Open(c.res, from)
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
func (w *watcher) state(state *store.Tree, rv uint64) bool {
	ok := true
	state.Ascend(func(o *store.Object) bool {
		if w.o.Selector.Matches(o) {
			ok = w.object(watch.Added, o)
		}
		return ok
	})
	if ok && w.o.Initial != nil && *w.o.Initial && w.o.Bookmarks {
		ok = w.bookmark(rv, true)
	}
	return ok && w.flush()
}

// follow sends events above rv until something ends the watch.
func (w *watcher) follow(a *Server, t *store.Table, rv uint64) {
	timeout := w.o.Timeout
	if timeout == 0 {
		timeout = a.WatchTimeout + rand.N(a.WatchTimeout)
	}
	end := time.NewTimer(timeout)
	defer end.Stop()
	marks := time.NewTicker(a.BookmarkEvery - a.BookmarkEvery/10 + rand.N(a.BookmarkEvery/5+1))
	defer marks.Stop()
	for {
		b, err := a.store.Pull(w.c.res, t, rv, store.PullLimit)
		if err != nil {
			return // too slow, or the resource is gone: the client starts over
		}
		for _, e := range b.Events {
			if !w.event(e) {
				return
			}
		}
		rv = max(rv, b.RV)
		if len(b.Events) > 0 {
			if !w.flush() {
				return
			}
			if len(b.Events) == store.PullLimit {
				continue
			}
		}
		select {
		case <-b.Wake:
		case <-marks.C:
			if w.o.Bookmarks && !(w.bookmark(max(rv, a.store.Quiet(t, rv)), false) && w.flush()) {
				return
			}
		case <-end.C:
			if w.o.Bookmarks {
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
func (w *watcher) event(e *store.Event) bool {
	if e.Junk != nil {
		_, err := w.out.Write(append(bytes.Clone(e.Junk), '\n'))
		return err == nil
	}
	was := e.Prev != nil && w.o.Selector.Matches(e.Prev)
	is := e.Cur != nil && w.o.Selector.Matches(e.Cur)
	switch {
	case is && was:
		return w.object(watch.Modified, e.Cur)
	case is:
		return w.object(watch.Added, e.Cur)
	case was:
		return w.object(watch.Deleted, e.Departed(w.c.res))
	}
	return true
}

// object writes one event in the form the client asked for.
func (w *watcher) object(kind watch.EventType, o *store.Object) bool {
	raw := o.Raw
	var err error
	switch w.c.as {
	case asTable:
		meta := metav1.ListMeta{ResourceVersion: strconv.FormatUint(o.RV, 10)}
		raw, err = marshal(newTableView(w.c.res, []*store.Object{o}, w.o.IncludeObject, &meta, w.rows == 0))
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
	mark := w.c.res.New()
	if initialEnd {
		mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	if raw, err = kinds.Encode(w.c.res, mark, rv); err != nil {
		return false
	}
	if w.c.as != asObject {
		return w.object(watch.Bookmark, &store.Object{RV: rv, Decoded: mark, Raw: raw})
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
