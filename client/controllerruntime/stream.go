package controllerruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/deltaplane/deltaplane/client"
)

// bookmarkEvery is how often a local store hears how far the index is: a read that waits for that
// waits as long where no object of the store changes.
const bookmarkEvery = 200 * time.Millisecond

func response(r *http.Request, code int, body []byte) *http.Response {
	return streamed(r, code, io.NopCloser(bytes.NewReader(body)))
}

func streamed(r *http.Request, code int, body io.ReadCloser) *http.Response {
	return &http.Response{
		Status: http.StatusText(code), StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r,
	}
}

// list answers with the whole state, and keeps where a watch goes on from it.
func (t *transport) list(r *http.Request, q request) *http.Response {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	o := t.options(q)
	o.AtLeast = t.op.least(ctx, q.collection)
	var items [][]byte
	for e, err := range t.op.index.Watch(ctx, q.collection, o) {
		switch {
		case err != nil:
			return refusal(r, err)
		case e.Type == client.EventGap: // it begins again
			items = nil
		case e.Type == client.EventAdded:
			items = append(items, q.payload(e.Object))
		case e.Type == client.EventInitialEnd:
			t.op.saw(ctx, q.collection, client.Bounds{Revision: e.Revision, Upper: e.Upper})
			t.keep(q, e.Revision.RV, e.Position)
			return response(r, http.StatusOK, q.listOf(items, e.Revision.RV))
		}
	}
	return refusal(r, context.Cause(r.Context()))
}

func (q request) listOf(items [][]byte, version string) []byte {
	gvk := q.gvk
	if q.metadata {
		gvk = metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")
	}
	var b bytes.Buffer
	b.WriteString(`{"kind":` + quoted(gvk.Kind+"List") + `,"apiVersion":` + quoted(gvk.GroupVersion().String()))
	b.WriteString(`,"metadata":{"resourceVersion":` + quoted(version) + `},"items":[`)
	for n, item := range items {
		if n > 0 {
			b.WriteByte(',')
		}
		b.Write(item)
	}
	b.WriteString("]}")
	return b.Bytes()
}

func quoted(s string) string {
	b, _ := json.Marshal(s) //nolint:errchkjson // of a string
	return string(b)
}

// payload is an object as an API server sends it. Metadata alone has a kind of its own, and an
// object of which no more is known has its name.
func (q request) payload(o client.Object) []byte {
	if len(o.Payload) == 0 {
		namespace, name := split(o.Key)
		m := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uidOf(o), ResourceVersion: o.ResourceVersion}}
		m.SetGroupVersionKind(q.gvk)
		b, _ := json.Marshal(m) //nolint:errchkjson // names and versions
		return q.renamed(b)
	}
	return q.renamed(o.Payload)
}

func (q request) renamed(object []byte) []byte {
	if !q.metadata {
		return object
	}
	return withFields(object, func(fields map[string]json.RawMessage) {
		fields["kind"], fields["apiVersion"] = json.RawMessage(`"PartialObjectMetadata"`), json.RawMessage(`"meta.k8s.io/v1"`)
	})
}

// withFields changes fields of an object.
func withFields(object []byte, change func(map[string]json.RawMessage)) []byte {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(object, &fields); err != nil {
		return object // its reader says what is wrong
	}
	change(fields)
	b, err := json.Marshal(fields)
	if err != nil {
		return object
	}
	return b
}

// body is a stream of events that ends with its reader.
type body struct {
	*io.PipeReader
	cancel context.CancelFunc
	ended  *sync.WaitGroup
}

// Close returns once nothing runs for the stream any more.
func (b body) Close() error {
	b.cancel()
	err := b.PipeReader.Close()
	b.ended.Wait()
	return err
}

// watch answers with a stream of events.
func (t *transport) watch(r *http.Request, q request) *http.Response {
	o := t.options(q)
	if q.initial {
		o.AtLeast = t.op.least(r.Context(), q.collection)
	} else {
		at, ok := t.position(q)
		if !ok {
			return answer(r, expired("too old resource version: "+q.version))
		}
		o.Resume = at
	}
	ctx, cancel := context.WithCancel(r.Context())
	reader, writer := io.Pipe()
	var ended sync.WaitGroup
	ended.Go(func() {
		s := events{t: t, q: q, to: writer, version: q.version, at: o.Resume}
		s.follow(ctx, o)
		t.keep(q, s.version, s.at)
		writer.CloseWithError(io.EOF)
	})
	stop := context.AfterFunc(ctx, func() { writer.CloseWithError(context.Cause(ctx)) })
	return streamed(r, http.StatusOK, body{reader, func() { stop(); cancel() }, &ended})
}

// events writes what happens to a watch.
type events struct {
	t       *transport
	q       request
	to      io.Writer
	version string          // of what was written last
	at      client.Position // behind it
}

func (s *events) follow(ctx context.Context, o client.WatchOptions) {
	for e, err := range s.t.op.index.Watch(ctx, s.q.collection, o) {
		if err != nil && ctx.Err() != nil { // the reader is gone
			return
		}
		if err != nil {
			s.lost()
			s.failed(statusOf(err))
			return
		}
		if e.Type == client.EventGap {
			s.lost()
			s.failed(expired("history was lost: " + e.Reason))
			return
		}
		s.t.op.sees(s.q.collection, client.Bounds{Revision: e.Revision, Upper: e.Upper})
		if s.write(e) != nil {
			return
		}
		if e.Position != (client.Position{}) {
			s.at = e.Position
		}
	}
}

// lost drops what watches of the collection would go on at: a list at the same resource version
// must not lead back to it.
func (s *events) lost() {
	s.at = client.Position{}
	s.t.lose(s.q.collection)
}

func (s *events) write(e client.Event) error {
	switch e.Type {
	case client.EventAdded:
		return s.send(watch.Added, s.q.payload(e.Object), e.Object.ResourceVersion)
	case client.EventUpdated:
		return s.send(watch.Modified, s.q.payload(e.Object), e.Object.ResourceVersion)
	case client.EventDeleted:
		object := s.q.payload(e.Object)
		if e.DeleteReason == client.DeleteFiltered && e.Previous != nil {
			object = versioned(s.q.payload(*e.Previous), e.Object.ResourceVersion)
		}
		return s.send(watch.Deleted, object, e.Object.ResourceVersion)
	case client.EventInitialEnd:
		return s.bookmark(e.Revision.RV, s.q.marked)
	case client.EventBookmark:
		return s.bookmark(e.Revision.RV, false)
	default:
		return nil
	}
}

// versioned is an object at another resource version: one that left a selection.
func versioned(object []byte, version string) []byte {
	return withFields(object, func(fields map[string]json.RawMessage) {
		fields["metadata"] = withFields(fields["metadata"], func(m map[string]json.RawMessage) { m["resourceVersion"] = json.RawMessage(quoted(version)) })
	})
}

func (s *events) bookmark(version string, ended bool) error {
	if version == "" {
		return nil
	}
	m := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}}
	m.SetGroupVersionKind(s.q.gvk)
	if ended {
		m.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return s.send(watch.Bookmark, s.q.renamed(b), version)
}

func (s *events) failed(status *metav1.Status) {
	if b, err := json.Marshal(status); err == nil {
		_ = s.send(watch.Error, b, s.version) // the stream ends in any case
	}
}

func (s *events) send(kind watch.EventType, object []byte, version string) error {
	frame := make([]byte, 0, len(object)+32)
	frame = append(frame, `{"type":"`...)
	frame = append(frame, kind...)
	frame = append(frame, `","object":`...)
	frame = append(frame, object...)
	frame = append(frame, "}\n"...)
	_, err := s.to.Write(frame)
	if err == nil && version != "" {
		s.version = version
	}
	return err
}
