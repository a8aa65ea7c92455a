package wire

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

// Field numbers of CollectionRevision and Revision.
const (
	fieldCollection = 1
	fieldRevision   = 2
	fieldEpoch      = 1
	fieldRV         = 2
)

// Collections are names of collections that were checked, so that each is
// checked once and kept once. It is one stream's.
type Collections map[string]string

const (
	// keptCollections bounds how many names one stream's requests make us keep.
	keptCollections = 1024
	// maxCollection is the longest name that checks.barrier lets pass.
	maxCollection = 1024
)

// good returns the name kept, checking it the first time.
func (c Collections) good(name []byte) (string, bool) {
	if s, ok := c[string(name)]; ok {
		return s, true
	}
	s := string(name)
	if _, err := delta.ParseCollection(s); err != nil || len(s) > maxCollection || !utf8.ValidString(s) || !spaceless(s) {
		return "", false
	}
	if len(c) >= keptCollections {
		clear(c)
	}
	if c != nil {
		c[s] = s
	}
	return s, true
}

// ReadMark reads a CollectionRevision as it is mostly written. It reports false
// for anything else, be it wrong or only unusual.
func ReadMark(b []byte, known Collections) (m workqueue.Mark, ok bool) {
	num, typ, n := protowire.ConsumeTag(b)
	if n < 0 || num != fieldCollection || typ != protowire.BytesType {
		return m, false
	}
	name, k := protowire.ConsumeBytes(b[n:])
	if k < 0 {
		return m, false
	}
	b = b[n+k:]
	if num, typ, n = protowire.ConsumeTag(b); n < 0 || num != fieldRevision || typ != protowire.BytesType {
		return m, false
	}
	rev, k := protowire.ConsumeBytes(b[n:])
	if k < 0 || n+k != len(b) {
		return m, false
	}
	if num, typ, n = protowire.ConsumeTag(rev); n > 0 && num == fieldEpoch && typ == protowire.VarintType {
		if m.Epoch, k = protowire.ConsumeVarint(rev[n:]); k < 0 {
			return m, false
		}
		rev = rev[n+k:]
		num, typ, n = protowire.ConsumeTag(rev)
	}
	if n < 0 || num != fieldRV || typ != protowire.BytesType {
		return m, false
	}
	text, k := protowire.ConsumeBytes(rev[n:])
	if k < 0 || n+k != len(rev) {
		return m, false
	}
	rv, err := delta.ParseRV(string(text))
	if err != nil {
		return m, false
	}
	m.RV = rv
	m.Collection, ok = known.good(name)
	return m, ok
}

// AppendMark writes a CollectionRevision as field of a message.
func AppendMark(b []byte, field protowire.Number, m *workqueue.Mark) []byte {
	rev := textSize(fieldRV, m.RV)
	if m.Epoch != 0 {
		rev += protowire.SizeTag(fieldEpoch) + protowire.SizeVarint(m.Epoch)
	}
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(textSize(fieldCollection, m.Collection)+protowire.SizeTag(fieldRevision)+protowire.SizeBytes(rev))) //nolint:gosec // a size
	b = AppendText(b, fieldCollection, m.Collection)
	b = protowire.AppendTag(b, fieldRevision, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(rev))      //nolint:gosec // a size
	b = AppendNumber(b, fieldEpoch, int64(m.Epoch)) //nolint:gosec // the same bits on the wire
	return AppendText(b, fieldRV, m.RV)
}

func textSize(field protowire.Number, s string) int {
	if s == "" {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeBytes(len(s))
}
