package forward

import (
	"bytes"
	"mime"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/deltaplane/deltaplane/services/gateway/mirror"
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
	switch {
	case err != nil:
		return Written{}
	case kind == "application/json":
		return readJSON(body)
	case kind == "application/vnd.kubernetes.protobuf":
		return readProtobuf(body)
	}
	return Written{}
}

func readJSON(body []byte) (w Written) {
	body = bytes.TrimSpace(body)
	if mirror.Text(body, "kind") == "Status" {
		w.UID = mirror.Text(body, "details", "uid")
		w.Gone = w.UID != ""
		return w
	}
	metadata := mirror.Member(body, "metadata")
	w.Version, _ = strconv.ParseUint(mirror.Text(metadata, "resourceVersion"), 10, 63) // none is zero
	w.UID = mirror.Text(metadata, "uid")
	grace := string(mirror.Member(metadata, "deletionGracePeriodSeconds"))
	finalizers := bytes.TrimSpace(mirror.Member(metadata, "finalizers"))
	w.Gone = (grace == "" || grace == "0") && len(finalizers) <= len("[]")
	return w
}

// The numbers of fields, of runtime.Unknown, ObjectMeta, Status and StatusDetails.
const (
	unknownType, unknownRaw                     = 1, 2
	typeKind                                    = 2
	objectMeta                                  = 1
	metaUID, metaVersion, metaGrace, metaFinals = 5, 6, 10, 14
	statusDetails, detailsUID                   = 5, 6
)

var magic = []byte("k8s\x00")

func readProtobuf(body []byte) (w Written) {
	body, ok := bytes.CutPrefix(body, magic)
	if !ok {
		return w
	}
	raw := field(body, unknownRaw)
	if string(field(field(body, unknownType), typeKind)) == "Status" {
		w.UID = string(field(field(raw, statusDetails), detailsUID))
		w.Gone = w.UID != ""
		return w
	}
	meta := field(raw, objectMeta)
	w.Version, _ = strconv.ParseUint(string(field(meta, metaVersion)), 10, 63) // none is zero
	w.UID = string(field(meta, metaUID))
	w.Gone = number(meta, metaGrace) == 0 && field(meta, metaFinals) == nil
	return w
}

// field is the last value of a field of bytes; nil where there is none, or no message.
func field(message []byte, want protowire.Number) (value []byte) {
	each(message, func(n protowire.Number, t protowire.Type, v []byte) {
		if b, size := protowire.ConsumeBytes(v); n == want && t == protowire.BytesType && size >= 0 {
			value = b
		}
	})
	return value
}

func number(message []byte, want protowire.Number) (value uint64) {
	each(message, func(n protowire.Number, t protowire.Type, v []byte) {
		if u, size := protowire.ConsumeVarint(v); n == want && t == protowire.VarintType && size >= 0 {
			value = u
		}
	})
	return value
}

func each(message []byte, fn func(protowire.Number, protowire.Type, []byte)) {
	for len(message) > 0 {
		n, t, size := protowire.ConsumeTag(message)
		if size < 0 {
			return
		}
		message = message[size:]
		size = protowire.ConsumeFieldValue(n, t, message)
		if size < 0 {
			return
		}
		fn(n, t, message[:size])
		message = message[size:]
	}
}
