package answer

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/gateway/mirror"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// Metadata in protobuf, as API servers write it: an envelope that names the type before the
// message, and in a watch the length before each event.

const magic = "k8s\x00"

// partial is the metadata of an object, at another version where one is given.
func partial(o *store.Object, version uint64) (*metav1.PartialObjectMetadata, error) {
	payload, err := o.Payload()
	if err != nil {
		return nil, err
	}
	m := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(mirror.Member(payload, "metadata"), &m.ObjectMeta); err != nil {
		return nil, fmt.Errorf("gateway: metadata of %s: %w", o.Key(), err)
	}
	if version > 0 {
		m.ResourceVersion = strconv.FormatUint(version, 10)
	}
	return m, nil
}

// message is one of the messages of Kubernetes.
type message interface{ Marshal() ([]byte, error) }

// appendEnvelope appends a message with its type.
func appendEnvelope(b []byte, apiVersion, kind string, m message) ([]byte, error) {
	raw, err := m.Marshal()
	if err != nil {
		return b, err
	}
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: raw}
	if raw, err = u.Marshal(); err != nil {
		return b, err
	}
	return append(append(b, magic...), raw...), nil
}

// appendPartial appends the metadata of an object.
func appendPartial(b []byte, o *store.Object, version uint64) ([]byte, error) {
	m, err := partial(o, version)
	if err != nil {
		return b, err
	}
	return appendEnvelope(b, partialVersion, partialKind, m)
}

// appendEvent appends an event of a watch.
func appendEvent(b []byte, kind watch.EventType, object []byte) ([]byte, error) {
	event, err := (&metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: object}}).Marshal()
	if err != nil {
		return b, err
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(event))) //nolint:gosec // objects are smaller
	return append(b, event...), nil
}

// listProtobuf writes a page of metadata. Its length stands before it, so it is made as a whole.
func listProtobuf(w http.ResponseWriter, r *request.Read, objects iter.Seq[*store.Object], meta metav1.ListMeta, wrote func()) error {
	list := metav1.PartialObjectMetadataList{ListMeta: meta}
	for o := range objects {
		m, err := partial(o, 0)
		if err != nil {
			return err
		}
		list.Items = append(list.Items, *m)
	}
	body, err := appendEnvelope(nil, partialVersion, partialKind+"List", &list)
	if err != nil {
		return err
	}
	header(w, r.Form)
	p := page{to: w, wrote: wrote, gzip: r.Gzip, buffer: &body}
	p.flush(false)
	return p.close()
}
