package wire

import (
	"errors"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// ErrWire says that a message cannot be read.
var ErrWire = errors.New("malformed message")

// At names an element of a repeated field; only refusals pay for it.
func At(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

// GoodKey says that a key is one; see [Checks.Key] for what is wrong with it.
func GoodKey(key string) bool {
	return key != "" && len(key) <= workqueue.MaxKeyLen && utf8.ValidString(key)
}

// Field is one field of a message: a number or bytes.
type Field struct {
	Num protowire.Number
	Typ protowire.Type
	V   uint64
	S   string
}

// GoodTrace says that a trace is one; see [Checks.Trace].
func GoodTrace(s string) bool {
	return len(s) <= maxTrace && spaceless(s) && utf8.ValidString(s)
}

// NextField takes the first field off a message. Fields of other types come
// without a value.
func NextField(b string) (Field, string, error) {
	f := Field{}
	tag, n := uvarint(b)
	if n <= 0 {
		return f, "", ErrWire
	}
	f.Num, f.Typ = protowire.DecodeTag(tag)
	b = b[n:]
	if f.Num < protowire.MinValidNumber {
		return f, "", ErrWire
	}
	switch f.Typ {
	case protowire.VarintType:
		if f.V, n = uvarint(b); n <= 0 {
			return f, "", ErrWire
		}
	case protowire.BytesType:
		size, k := uvarint(b)
		if k <= 0 || size > uint64(len(b)-k) {
			return f, "", ErrWire
		}
		n = k + int(size) //nolint:gosec // no more than the message
		f.S = b[k:n]
	default:
		if n = protowire.ConsumeFieldValue(f.Num, f.Typ, []byte(b)); n < 0 {
			return f, "", ErrWire
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
