package answer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/fieldmask"
	"github.com/deltaplane/deltaplane/internal/table"
	"github.com/deltaplane/deltaplane/services/gateway/mirror"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// Kind is what objects of a resource call themselves.
type Kind struct {
	// Kind and APIVersion of an object, and the kind of a list of them.
	Kind, APIVersion, ListKind string

	// Table makes rows, where they are asked for.
	Table *table.Table

	bare []byte // how the objects of built-in resources begin, which do not say it within a list
}

// KindOf is the kind of a mirror's objects.
func KindOf(m *mirror.Mirror) Kind {
	k := Kind{Kind: m.Resource.Kind, APIVersion: m.Resource.APIVersion(), ListKind: m.ListKind}
	k.bare = fmt.Appendf(nil, `{"kind":%s,"apiVersion":%s,`, quoted(k.Kind), quoted(k.APIVersion))
	return k
}

const (
	partialKind    = "PartialObjectMetadata"
	partialVersion = "meta.k8s.io/v1"
	partialBegin   = `{"kind":"` + partialKind + `","apiVersion":"` + partialVersion + `","metadata":`
)

func quoted(s string) []byte {
	b, _ := json.Marshal(s) //nolint:errchkjson // of a text
	return b
}

// shape is how objects are written.
type shape struct {
	form request.Form
	mask *fieldmask.Mask // of the full form; nil keeps all
}

func shapeOf(r *request.Read) shape { return shape{r.Form, r.Mask} }

// appendObject appends an object in a shape.
func appendObject(b []byte, o *store.Object, as shape) ([]byte, error) {
	switch {
	case as.form == request.Full && as.mask == nil:
		return o.AppendPayload(b)
	case as.form == request.MetadataProtobuf:
		return appendPartial(b, o, 0)
	}
	payload, err := o.Payload()
	if err != nil {
		return b, err
	}
	if as.form == request.Full {
		return append(b, as.mask.Keep(payload)...), nil
	}
	return appendMetadata(b, payload), nil
}

func appendMetadata(b, payload []byte) []byte {
	b = append(b, partialBegin...)
	b = append(b, mirror.Member(payload, "metadata")...)
	return append(b, '}')
}

// appendRow appends the row of an object in a Table.
func (k *Kind) appendRow(b, payload []byte, with metav1.IncludeObjectPolicy) ([]byte, error) {
	shown := []byte("null")
	switch with {
	case metav1.IncludeObject:
		shown = payload
	case metav1.IncludeMetadata:
		shown = appendMetadata(nil, payload)
	}
	return k.Table.AppendRow(b, payload, shown, time.Now())
}

// appendTable appends a Table of one object, as watches have it. The first of a watch has the
// columns.
func (k *Kind) appendTable(b, payload []byte, with metav1.IncludeObjectPolicy, columns bool) ([]byte, error) {
	b = append(b, `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":`...)
	b = append(b, mirror.Member(payload, "metadata", "resourceVersion")...)
	b = append(b, `},"columnDefinitions":`...)
	if columns {
		b = append(b, k.Table.Columns...)
	} else {
		b = append(b, "null"...)
	}
	b, err := k.appendRow(append(b, `,"rows":[`...), payload, with)
	return append(b, "]}"...), err
}

// appendItem appends an object within a list.
func (k *Kind) appendItem(b []byte, o *store.Object, r *request.Read) ([]byte, error) {
	if r.Form != request.Full && r.Form != request.Table {
		return appendObject(b, o, shapeOf(r))
	}
	payload, err := o.Payload()
	if err != nil {
		return b, err
	}
	if r.Form == request.Table {
		return k.appendRow(b, payload, r.Object)
	}
	if r.Mask != nil {
		payload = r.Mask.Keep(payload)
	}
	if rest, ok := bytes.CutPrefix(payload, k.bare); ok {
		return append(append(b, '{'), rest...), nil
	}
	return append(b, payload...), nil
}

// appendVersioned appends an object at another resource version: one that has left a selection.
func appendVersioned(b []byte, o *store.Object, as shape, version uint64) ([]byte, error) {
	if as.form == request.MetadataProtobuf {
		return appendPartial(b, o, version)
	}
	begin := len(b)
	b, err := appendObject(b, o, as)
	if err != nil {
		return b, err
	}
	from, to := mirror.Place(b[begin:], "metadata", "resourceVersion")
	rest := bytes.Clone(b[begin+to:])
	b = append(b[:begin+from], '"')
	b = strconv.AppendUint(b, version, 10)
	b = append(b, '"')
	return append(b, rest...), nil
}

// Object writes one object.
func Object(w http.ResponseWriter, r *request.Read, o *store.Object) error {
	body, err := appendObject(nil, o, shapeOf(r))
	if err != nil {
		return err
	}
	header(w, r.Form)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, err = w.Write(body)
	return err
}

// ServedBy is the header that answers from the index have, with the value "index".
const ServedBy = "X-Deltaplane-Served-By"

// header is that of every answer, as API servers have it.
func header(w http.ResponseWriter, form request.Form) {
	w.Header().Set("Content-Type", "application/json")
	if form == request.MetadataProtobuf {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	}
	w.Header().Set(ServedBy, "index")
	w.Header().Set("Cache-Control", "no-cache, private")
}
