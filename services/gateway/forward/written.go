package forward

import (
	"bytes"
	"encoding/json"
	"errors"
	"mime"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Written is what the answer to a write says. Its zero value says nothing.
type Written struct {
	// Version of the object, or of the last change of one that is gone.
	Version uint64
	// UID of the object.
	UID string
	// Gone says that the object is not there any more.
	Gone bool
}

func readWritten(contentType string, body []byte) Written {
	kind, _, err := mime.ParseMediaType(contentType)
	var what string
	var object metav1.PartialObjectMetadata // all objects have their metadata where it has
	var status metav1.Status
	switch {
	case err != nil:
	case kind == "application/json":
		if err = json.Unmarshal(body, &object); err == nil {
			if what = object.Kind; what == statusKind {
				err = json.Unmarshal(body, &status)
			}
		}
	case kind == runtime.ContentTypeProtobuf:
		what, err = readProtobuf(body, &object, &status)
	default:
		return Written{}
	}
	switch {
	case err != nil:
		return Written{}
	case what != statusKind:
		return ofObject(&object.ObjectMeta)
	case status.Details == nil:
		return Written{}
	}
	uid := string(status.Details.UID)
	return Written{UID: uid, Gone: uid != ""}
}

const statusKind = "Status"

// ofObject is what an object says. Neither a grace period nor a finalizer keeps one that is gone.
func ofObject(m *metav1.ObjectMeta) Written {
	version, _ := strconv.ParseUint(m.ResourceVersion, 10, 63) // none is zero
	kept := m.DeletionGracePeriodSeconds != nil && *m.DeletionGracePeriodSeconds > 0 || len(m.Finalizers) > 0
	return Written{Version: version, UID: string(m.UID), Gone: m.UID != "" && !kept}
}

var (
	magic      = []byte("k8s\x00")
	errNoMagic = errors.New("gateway: the answer is no protobuf of Kubernetes")
)

func readProtobuf(body []byte, object *metav1.PartialObjectMetadata, status *metav1.Status) (kind string, err error) {
	body, ok := bytes.CutPrefix(body, magic)
	if !ok {
		return "", errNoMagic
	}
	var u runtime.Unknown
	if err := u.Unmarshal(body); err != nil {
		return "", err
	}
	if u.Kind == statusKind {
		return u.Kind, status.Unmarshal(u.Raw)
	}
	return u.Kind, object.Unmarshal(u.Raw)
}
