package queue

import (
	"errors"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

var errWire = errors.New("malformed message")

// at names an element of a repeated field; only refusals pay for it.
func at(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

func goodKey(key string) bool {
	return key != "" && len(key) <= workqueue.MaxKeyLen && utf8.ValidString(key)
}

// wireField is one field of a message: a number or bytes.
type wireField struct {
	num protowire.Number
	typ protowire.Type
	v   uint64
	s   string
}

func goodTrace(s string) bool {
	return len(s) <= maxTrace && spaceless(s) && utf8.ValidString(s)
}

// nextField takes the first field off a message. Fields of other types come
// without a value.
func nextField(b string) (wireField, string, error) {
	f := wireField{}
	tag, n := uvarint(b)
	if n <= 0 {
		return f, "", errWire
	}
	f.num, f.typ = protowire.DecodeTag(tag)
	b = b[n:]
	if f.num < protowire.MinValidNumber {
		return f, "", errWire
	}
	switch f.typ {
	case protowire.VarintType:
		if f.v, n = uvarint(b); n <= 0 {
			return f, "", errWire
		}
	case protowire.BytesType:
		size, k := uvarint(b)
		if k <= 0 || size > uint64(len(b)-k) {
			return f, "", errWire
		}
		n = k + int(size) //nolint:gosec // no more than the message
		f.s = b[k:n]
	default:
		if n = protowire.ConsumeFieldValue(f.num, f.typ, []byte(b)); n < 0 {
			return f, "", errWire
		}
	}
	return f, b[n:], nil
}

func uvarint(b string) (uint64, int) {
	var v uint64
	for i := range min(len(b), 10) {
		c := b[i]
		if c < 0x80 {
			if i == 9 && c > 1 {
				return 0, -1
			}
			return v | uint64(c)<<(7*i), i + 1
		}
		v |= uint64(c&0x7f) << (7 * i)
	}
	return 0, -1
}
