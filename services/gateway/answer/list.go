package answer

import (
	"compress/gzip"
	"io"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/gateway/mirror"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

const (
	// gzipFrom is the length from which an answer is compressed, as upstream.
	gzipFrom = 128 << 10
	chunk    = 64 << 10
)

// List writes a page of a view, and calls wrote after each part. More tells that the view has
// further pages: it must be kept for them.
func List(w http.ResponseWriter, r *request.Read, k Kind, v *mirror.View, version uint64, wrote func()) (more bool, err error) {
	objects, meta := choice(r, v, version)
	if r.Form == request.MetadataProtobuf {
		return meta.Continue != "", listProtobuf(w, r, objects, meta, wrote)
	}
	p := page{to: w, wrote: wrote, gzip: r.Gzip, buffer: buffers.Get().(*[]byte)} //nolint:forcetypeassert // it has no others
	defer p.free()
	kind, apiVersion := k.ListKind, k.APIVersion
	switch r.Form {
	case request.Metadata:
		kind, apiVersion = partialKind+"List", partialVersion
	case request.Table:
		kind, apiVersion = "Table", partialVersion
	}
	p.text(`{"kind":`, string(quoted(kind)), `,"apiVersion":`, string(quoted(apiVersion)), `,"metadata":{"resourceVersion":"`, meta.ResourceVersion, `"`)
	if meta.Continue != "" {
		p.text(`,"continue":`, string(quoted(meta.Continue)))
	}
	if meta.RemainingItemCount != nil {
		p.text(`,"remainingItemCount":`, strconv.FormatInt(*meta.RemainingItemCount, 10))
	}
	if r.Form == request.Table {
		p.text(`},"columnDefinitions":`, string(k.Table.Columns), `,"rows":[`)
	} else {
		p.text(`},"items":[`)
	}
	header(w, r.Form)
	n := 0
	for o := range objects {
		if err := p.item(&k, o, r, n); err != nil {
			return false, err
		}
		n++
	}
	return meta.Continue != "", p.end()
}

// choice are the objects of a page, and what is said of it.
func choice(r *request.Read, v *mirror.View, version uint64) (iter.Seq[*store.Object], metav1.ListMeta) {
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatUint(version, 10)}
	c := choose(r)
	if r.Limit == 0 {
		return func(yield func(*store.Object) bool) {
			for o := range all(v, r) {
				if c.takes(o) && !yield(o) {
					return
				}
			}
		}, meta
	}
	var items []*store.Object
	remaining := int64(0)
	for o := range all(v, r) {
		switch full := int64(len(items)) == r.Limit; {
		case !full && c.takes(o):
			items = append(items, o)
		case full:
			remaining++
		}
		if remaining > 0 && c != nil { // who chooses is not told how many follow
			break
		}
	}
	if remaining == 0 {
		return slices.Values(items), meta
	}
	last := items[len(items)-1].Key()
	if r.Namespace != "" {
		last = strings.TrimPrefix(last, r.Namespace+"/")
	}
	meta.Continue = request.Token(last, version)
	if c == nil {
		meta.RemainingItemCount = &remaining
	}
	return slices.Values(items), meta
}

// all are the objects of a request's namespace, behind its continue token. One that is chosen by
// its name is looked up, and has no page behind it, as upstream.
func all(v *mirror.View, r *request.Read) iter.Seq[*store.Object] {
	if name := r.Single(); name != "" && r.After == "" && (r.Namespace != "" || !r.Namespaced) {
		key := string(delta.NewKey(r.Namespace, name))
		return func(yield func(*store.Object) bool) {
			if o := v.Get(key); o != nil {
				yield(o)
			}
		}
	}
	switch {
	case r.Namespace != "":
		return v.Namespace(r.Namespace, r.After)
	case !r.Namespaced:
		return v.All(r.After)
	}
	return everywhere(v, r)
}

// page writes an answer in chunks, compressed when it is large and the client takes that.
type page struct {
	to     http.ResponseWriter
	wrote  func()
	gzip   bool
	packed *gzip.Writer // nil until it is used
	begun  bool
	until  deadline
	buffer *[]byte
	err    error
}

var (
	buffers = sync.Pool{New: func() any { b := make([]byte, 0, 2*chunk); return &b }}
	packers = sync.Pool{New: func() any {
		w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // as upstream; the level is one
		return w
	}}
)

func (p *page) text(parts ...string) {
	for _, part := range parts {
		*p.buffer = append(*p.buffer, part...)
	}
}

func (p *page) item(k *Kind, o *store.Object, r *request.Read, n int) (err error) {
	if n > 0 {
		*p.buffer = append(*p.buffer, ',')
	}
	if *p.buffer, err = k.appendItem(*p.buffer, o, r); err != nil {
		return err
	}
	most := chunk
	if p.gzip && !p.begun { // what is shorter is not compressed
		most = gzipFrom
	}
	if len(*p.buffer) > most {
		p.flush(true)
	}
	return p.err
}

func (p *page) flush(more bool) {
	if p.err != nil {
		return
	}
	if !p.begun {
		p.begun = true
		if p.gzip && (more || len(*p.buffer) > gzipFrom) {
			p.to.Header().Set("Content-Encoding", "gzip")
			p.to.Header().Add("Vary", "Accept-Encoding")
			p.packed = packers.Get().(*gzip.Writer) //nolint:forcetypeassert // it has no others
			p.packed.Reset(p.to)
		} else if !more {
			p.to.Header().Set("Content-Length", strconv.Itoa(len(*p.buffer)))
		}
	}
	p.until.extend(http.NewResponseController(p.to))
	var to io.Writer = p.to
	if p.packed != nil {
		to = p.packed
	}
	_, p.err = to.Write(*p.buffer)
	p.wrote()
	*p.buffer = (*p.buffer)[:0]
}

func (p *page) end() error {
	p.text("]}\n")
	p.flush(false)
	return p.close()
}

// close ends what is compressed.
func (p *page) close() error {
	if p.packed != nil && p.err == nil {
		p.err = p.packed.Close()
	}
	return p.err
}

func (p *page) free() {
	if p.packed != nil {
		p.packed.Reset(nil)
		packers.Put(p.packed)
	}
	if cap(*p.buffer) < 8*chunk {
		*p.buffer = (*p.buffer)[:0]
		buffers.Put(p.buffer)
	}
}
