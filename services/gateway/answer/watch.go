package answer

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/gateway/mirror"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// Verdict says whether a watch goes on.
type Verdict uint8

const (
	// GoOn lets it go on.
	GoOn Verdict = iota
	// End ends it. Its reader goes on behind what it has.
	End
	// Expire ends it with 410. Its reader lists again.
	Expire
)

// Watch is a watch of the Kubernetes API. It is for one request.
type Watch struct {
	Read   *request.Read
	Kind   Kind
	Mirror *mirror.Mirror
	// View is the state that comes first; nil where the watch begins behind a version.
	View *mirror.View
	// Events are read from here.
	Events *mirror.Reader
	// Marked returns once the state is recent enough for the end of the initial events to be
	// marked; nil where that is not wanted.
	Marked func(ctx context.Context) bool
	// May is asked every now and then whether the watch goes on.
	May func() Verdict
	// Drain ends the watch when it is closed.
	Drain <-chan struct{}
	// Wrote is called after each part of the state that comes first, Begun once it is written. Both
	// are set where there is such a state.
	Wrote, Begun func()
	// Delivered counts the events that are sent.
	Delivered func(n int)

	out     http.ResponseWriter
	control *http.ResponseController
	choose  *chooser
	until   deadline
	buffer  []byte
	events  []*mirror.Event
	frames  int    // in buffer
	headed  bool   // the columns of a Table are sent
	sent    uint64 // the version that was sent last
}

const (
	// leastTimeout bounds watches that name no timeout, to one or two times itself, as upstream.
	leastTimeout = 30 * time.Minute
	// bookmarkEvery is the time between bookmarks, and bookmarkBefore how long before its end a
	// watch gets one, as upstream.
	bookmarkEvery  = time.Minute
	bookmarkBefore = 2 * time.Second
	mayEvery       = 10 * time.Second
	readAtOnce     = 256
	// settle is how long a view takes to follow its events.
	settle = time.Millisecond
)

// Run writes the watch until it ends: with ctx, its timeout, or when what follows is not known.
func (w *Watch) Run(ctx context.Context, out http.ResponseWriter) error {
	defer w.Events.Close()
	w.out, w.control, w.choose = out, http.NewResponseController(out), choose(w.Read)
	header(out, w.Read.Form)
	if w.Read.Form == request.MetadataProtobuf {
		out.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	}
	out.WriteHeader(http.StatusOK)
	if err := w.initial(); err != nil {
		return err
	}
	if w.Begun != nil {
		w.Begun()
	}
	timeout := w.Read.Timeout
	if timeout == 0 {
		timeout = leastTimeout + rand.N(leastTimeout) //nolint:gosec // jitter needs no secrecy
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	marked := w.mark(ctx)
	regular := time.NewTicker(bookmarkEvery*3/4 + rand.N(bookmarkEvery/2)) //nolint:gosec // jitter
	defer regular.Stop()
	last := time.NewTimer(max(timeout-bookmarkBefore, timeout/2))
	defer last.Stop()
	may := time.NewTicker(mayEvery)
	defer may.Stop()
	due := time.NewTimer(time.Hour)
	due.Stop()
	var owed func() (bool, error) // what is to be said as soon as a version is known
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-w.Drain:
			return nil
		case <-w.Events.History().Ended:
			return nil
		case <-w.Events.More:
			err = w.more()
		case ok := <-marked:
			if !ok {
				return nil
			}
			marked, owed = nil, w.end
		case <-due.C:
		case <-regular.C:
			owed = first(owed, w.bookmark)
		case <-last.C:
			owed = first(owed, w.bookmark)
		case <-may.C:
			switch w.May() {
			case End:
				return nil
			case Expire:
				w.expire("what its reader may see has changed")
				return nil
			}
		}
		if err == nil && owed != nil {
			var still bool
			if still, err = owed(); still {
				due.Reset(settle)
			} else {
				owed = nil
			}
		}
		if err != nil {
			return err
		}
	}
}

// first is what is owed already, or what comes.
func first(owed, comes func() (bool, error)) func() (bool, error) {
	if owed != nil {
		return owed
	}
	return comes
}

// mark waits for the state to be recent enough. Nil is never ready.
func (w *Watch) mark(ctx context.Context) <-chan bool {
	if w.Marked == nil {
		return nil
	}
	ready := make(chan bool, 1)
	go func() { ready <- w.Marked(ctx) }()
	return ready
}

// initial writes the state that comes first.
func (w *Watch) initial() error {
	if w.View != nil {
		for o := range all(w.View, w.Read) {
			if !w.choose.takes(o) {
				continue
			}
			if err := w.frame(watch.Added, func(b []byte) ([]byte, error) { return w.append(b, o, 0) }); err != nil {
				return err
			}
			if len(w.buffer) == 0 {
				w.Wrote()
			}
		}
	}
	return w.flush()
}

// more writes the events that have come.
func (w *Watch) more() error {
	events, ok := w.Events.Read(w.events[:0], readAtOnce)
	if !ok {
		return errBehind
	}
	w.events = events
	for _, e := range events {
		if err := w.event(e); err != nil {
			return err
		}
	}
	clear(events)
	if len(events) == 0 {
		return nil
	}
	return w.flush()
}

// event writes what a change means to those who see the chosen objects alone.
func (w *Watch) event(e *mirror.Event) error {
	was, is := w.choose.takes(e.Old), w.choose.takes(e.New)
	w.sent = e.Version
	switch {
	case was && is:
		return w.object(watch.Modified, e.New)
	case is:
		return w.object(watch.Added, e.New)
	case !was:
		return nil
	case e.Unknown:
		w.expire(fmt.Sprintf("what was deleted behind %d is not known", w.sent))
		return errUnknown
	case e.Final != nil:
		return w.object(watch.Deleted, e.Final)
	}
	return w.frame(watch.Deleted, func(b []byte) ([]byte, error) { return w.append(b, e.Old, e.Version) })
}

func (w *Watch) object(kind watch.EventType, o *store.Object) error {
	return w.frame(kind, func(b []byte) ([]byte, error) { return w.append(b, o, 0) })
}

// append appends an object, at another version than its own where one is given.
func (w *Watch) append(b []byte, o *store.Object, version uint64) ([]byte, error) {
	if w.Read.Form != request.Table {
		if version > 0 {
			return appendVersioned(b, o, shapeOf(w.Read), version)
		}
		return appendObject(b, o, shapeOf(w.Read))
	}
	payload, err := o.Payload()
	if err == nil && version > 0 {
		payload, err = appendVersioned(nil, o, shape{}, version)
	}
	if err != nil {
		return b, err
	}
	columns := !w.headed
	w.headed = true
	return w.Kind.appendTable(b, payload, w.Read.Object, columns)
}

func (w *Watch) frame(kind watch.EventType, object func([]byte) ([]byte, error)) (err error) {
	w.frames++
	if w.Read.Form == request.MetadataProtobuf {
		o, err := object(nil)
		if err != nil {
			return fmt.Errorf("gateway: an object cannot be read: %w", err)
		}
		if w.buffer, err = appendEvent(w.buffer, kind, o); err != nil {
			return err
		}
		return w.overflow()
	}
	w.buffer = append(w.buffer, `{"type":"`...)
	w.buffer = append(w.buffer, kind...)
	w.buffer = append(w.buffer, `","object":`...)
	if w.buffer, err = object(w.buffer); err != nil {
		return fmt.Errorf("gateway: an object cannot be read: %w", err)
	}
	w.buffer = append(w.buffer, "}\n"...)
	return w.overflow()
}

// overflow writes what has become much.
func (w *Watch) overflow() error {
	if len(w.buffer) <= chunk {
		return nil
	}
	return w.write()
}

// bookmark says how far the watch is, where the client wants that, and reports whether it is owed
// still: it is of a version of which nothing is missing and behind which nothing was sent.
func (w *Watch) bookmark() (owed bool, err error) {
	if !w.Read.Bookmarks {
		return false, nil
	}
	v, err := w.level()
	if err != nil || v == nil {
		return true, err
	}
	return false, w.mention(v.Revision, nil)
}

// level reads what has come, and returns the view that it leads to; nil where that is not known
// yet. Nobody wakes a reader of one namespace for the others, so it may have something to pass
// over.
func (w *Watch) level() (*mirror.View, error) {
	v := w.Mirror.View()
	if err := w.more(); err != nil || !w.Events.At(v) {
		return nil, err
	}
	return v, nil
}

// end marks the end of the initial events, and reports whether that is owed still.
func (w *Watch) end() (owed bool, err error) {
	v, err := w.level()
	if err != nil || v == nil {
		return true, err
	}
	return false, w.mention(v.Revision, map[string]string{metav1.InitialEventsAnnotationKey: "true"})
}

func (w *Watch) mention(version uint64, annotations map[string]string) error {
	m := metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{Kind: w.Kind.Kind, APIVersion: w.Kind.APIVersion},
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.FormatUint(version, 10), Annotations: annotations},
	}
	if w.Read.Form == request.Metadata {
		m.TypeMeta = metav1.TypeMeta{Kind: partialKind, APIVersion: partialVersion}
	}
	err := w.frame(watch.Bookmark, func(b []byte) ([]byte, error) {
		if w.Read.Form == request.MetadataProtobuf {
			return appendEnvelope(b, partialVersion, partialKind, &m)
		}
		text, err := json.Marshal(m)
		return append(b, text...), err
	})
	if err != nil {
		return err
	}
	w.sent = version
	return w.flush()
}

// expire says that the watch cannot go on, and that its reader must list again.
func (w *Watch) expire(why string) {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired,
		Message: "too old resource version: " + why,
	}
	_ = w.frame(watch.Error, func(b []byte) ([]byte, error) {
		if w.Read.Form == request.MetadataProtobuf {
			return appendEnvelope(b, "v1", "Status", &status)
		}
		text, err := json.Marshal(status)
		return append(b, text...), err
	})
	_ = w.flush() // the watch ends in any case
}

func (w *Watch) write() error {
	w.until.extend(w.control)
	_, err := w.out.Write(w.buffer)
	w.Delivered(w.frames)
	w.buffer, w.frames = w.buffer[:0], 0
	if cap(w.buffer) > 2*chunk { // most watches are idle
		w.buffer = nil
	}
	return err
}

func (w *Watch) flush() error {
	if len(w.buffer) > 0 {
		if err := w.write(); err != nil {
			return err
		}
	}
	return w.control.Flush()
}
