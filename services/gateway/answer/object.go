package answer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/gateway/mirror"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// Kind is what objects of a resource call themselves.
type Kind struct {
	// Kind and APIVersion of an object, and the kind of a list of them.
	Kind, APIVersion, ListKind string

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

// appendObject appends an object in a form.
func appendObject(b []byte, o *store.Object, form request.Form) ([]byte, error) {
	switch form {
	case request.Full:
		return o.AppendPayload(b)
	case request.MetadataProtobuf:
		return appendPartial(b, o, 0)
	}
	payload, err := o.Payload()
	if err != nil {
		return b, err
	}
	b = append(b, partialBegin...)
	b = append(b, mirror.Member(payload, "metadata")...)
	return append(b, '}'), nil
}

// appendItem appends an object within a list.
func (k *Kind) appendItem(b []byte, o *store.Object, form request.Form) ([]byte, error) {
	if form != request.Full {
		return appendObject(b, o, form)
	}
	payload, err := o.Payload()
	if err != nil {
		return b, err
	}
	if rest, ok := bytes.CutPrefix(payload, k.bare); ok {
		return append(append(b, '{'), rest...), nil
	}
	return append(b, payload...), nil
}

// appendVersioned appends an object at another resource version: one that has left a selection.
func appendVersioned(b []byte, o *store.Object, form request.Form, version uint64) ([]byte, error) {
	if form == request.MetadataProtobuf {
		return appendPartial(b, o, version)
	}
	begin := len(b)
	b, err := appendObject(b, o, form)
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
	body, err := appendObject(nil, o, r.Form)
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
