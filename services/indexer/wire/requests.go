package wire

import (
	"errors"
	"sync"
	"unicode/utf8"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// This file reads the hot requests of index.proto without allocating. What they
// seldom hold, and whatever is not as expected, is left to the generated code:
// the two never differ in what they accept. Messages are used again, so nothing
// may keep their strings after release.

// errSeldom says that the generated code has to read a message.
var errSeldom = errors.New("seldom")

// scratch holds the bytes of a request, which its strings refer to, and the
// messages inside it.
type scratch struct {
	buf         []byte
	consistency indexv1.Consistency
	atLeast     deltav1.Revision
}

const scratchMost = 16 << 10

// take copies the bytes of a request; false when it is too large to be kept.
func (s *scratch) take(data []byte) bool {
	if len(data) > scratchMost {
		return false
	}
	s.buf = append(s.buf[:0], data...)
	return true
}

// field is one field of a message: a number, or bytes.
type field struct {
	num    protowire.Number
	varint uint64
	bytes  []byte
}

// eachField calls visit with each field of a message; errSeldom for a malformed
// one, or one with other types.
func eachField(data []byte, visit func(field) error) error {
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return errSeldom
		}
		data = data[n:]
		f := field{num: num}
		switch typ {
		case protowire.VarintType:
			f.varint, n = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(data)
			if f.bytes == nil {
				f.bytes = []byte{}
			}
		default:
			return errSeldom
		}
		if n < 0 {
			return errSeldom
		}
		data = data[n:]
		if err := visit(f); err != nil {
			return err
		}
	}
	return nil
}

// text is a string field; it refers to the bytes.
func (f *field) text(to *string) error {
	if f.bytes == nil || !utf8.Valid(f.bytes) {
		return errSeldom
	}
	*to = unsafe.String(unsafe.SliceData(f.bytes), len(f.bytes))
	return nil
}

// number is a scalar field.
func (f *field) number(to *uint64) error {
	if f.bytes != nil {
		return errSeldom
	}
	*to = f.varint
	return nil
}

// readConsistency reads one that names a revision and no timeout.
func (s *scratch) readConsistency(f *field, to **indexv1.Consistency) error {
	if f.bytes == nil || *to != nil { // several of one message field are merged
		return errSeldom
	}
	*to = &s.consistency
	return eachField(f.bytes, func(f field) error {
		if f.num != 1 || f.bytes == nil || s.consistency.AtLeast != nil {
			return errSeldom
		}
		s.consistency.AtLeast = &s.atLeast
		return eachField(f.bytes, func(f field) error {
			switch f.num {
			case 1:
				return f.number(&s.atLeast.Epoch)
			case 2:
				return f.text(&s.atLeast.ResourceVersion)
			}
			return errSeldom
		})
	})
}

func (s *scratch) reset() {
	s.consistency.AtLeast, s.atLeast.Epoch, s.atLeast.ResourceVersion = nil, 0, ""
}

// getRequest is a GetRequest that reads itself.
type getRequest struct {
	indexv1.GetRequest
	scratch
	seldom bool
}

var getRequests = sync.Pool{New: func() any { return new(getRequest) }}

func newGetRequest() *getRequest { return getRequests.Get().(*getRequest) }

func (r *getRequest) target() any { return r }

func (r *getRequest) message() *indexv1.GetRequest { return &r.GetRequest }

// release gives r back. It may be left out.
func (r *getRequest) release() {
	if r.seldom {
		return
	}
	r.Collection, r.Key, r.View, r.Consistency = "", "", 0, nil
	r.scratch.reset()
	getRequests.Put(r)
}

func (r *getRequest) decode(data []byte) error {
	if r.take(data) && r.read() == nil {
		return nil
	}
	r.seldom = true
	return proto.Unmarshal(data, &r.GetRequest)
}

func (r *getRequest) read() error {
	return eachField(r.buf, func(f field) error {
		switch f.num {
		case 1:
			return f.text(&r.Collection)
		case 2:
			return f.text(&r.Key)
		case 3:
			return r.readConsistency(&f, &r.Consistency)
		case 4:
			return readView(&f, &r.View)
		}
		return errSeldom
	})
}

func readView(f *field, to *indexv1.View) error {
	var v uint64
	if err := f.number(&v); err != nil {
		return err
	}
	*to = indexv1.View(int32(v))
	return nil
}

// byIndexRequest is a ByIndexRequest that reads itself.
type byIndexRequest struct {
	indexv1.ByIndexRequest
	scratch
	seldom bool
}

var byIndexRequests = sync.Pool{New: func() any { return new(byIndexRequest) }}

func newByIndexRequest() *byIndexRequest { return byIndexRequests.Get().(*byIndexRequest) }

func (r *byIndexRequest) target() any { return r }

func (r *byIndexRequest) message() *indexv1.ByIndexRequest { return &r.ByIndexRequest }

// release gives r back. It may be left out.
func (r *byIndexRequest) release() {
	if r.seldom {
		return
	}
	clear(r.Values)
	r.Collection, r.Index, r.Values, r.PageSize, r.View, r.Consistency = "", "", r.Values[:0], 0, 0, nil
	r.scratch.reset()
	byIndexRequests.Put(r)
}

func (r *byIndexRequest) decode(data []byte) error {
	if r.take(data) && r.read() == nil {
		return nil
	}
	r.seldom = true
	r.Values = nil
	return proto.Unmarshal(data, &r.ByIndexRequest)
}

func (r *byIndexRequest) read() error {
	return eachField(r.buf, func(f field) error {
		switch f.num {
		case 1:
			return f.text(&r.Collection)
		case 2:
			return f.text(&r.Index)
		case 3:
			r.Values = append(r.Values, "")
			return f.text(&r.Values[len(r.Values)-1])
		case 4:
			var v uint64
			err := f.number(&v)
			r.PageSize = int32(v)
			return err
		case 6:
			return r.readConsistency(&f, &r.Consistency)
		case 7:
			return readView(&f, &r.View)
		}
		return errSeldom
	})
}

// queryRequest is a QueryRequest of which the call has not been read.
type queryRequest struct {
	tag     uint64
	kind    protowire.Number // field of the call; 0 for none
	call    []byte           // refers to buf
	cancel  uint64
	timeout *durationpb.Duration
	several bool // it has more than one call
	buf     []byte
}

const (
	queryTag     = 1
	queryCancel  = 11
	queryTimeout = 12
)

var errQueryMalformed = errors.New("malformed request")

func (q *queryRequest) decode(data []byte) error {
	q.tag, q.kind, q.call, q.cancel, q.timeout, q.several = 0, 0, nil, 0, nil, false
	if cap(q.buf) > scratchMost {
		q.buf = nil
	}
	q.buf = append(q.buf[:0], data...)
	for rest := q.buf; len(rest) > 0; {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return errQueryMalformed
		}
		rest = rest[n:]
		f := field{num: num}
		switch typ {
		case protowire.VarintType:
			f.varint, n = protowire.ConsumeVarint(rest)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(rest)
		default:
			n = protowire.ConsumeFieldValue(num, typ, rest)
		}
		if n < 0 {
			return errQueryMalformed
		}
		rest = rest[n:]
		if err := q.set(&f, typ); err != nil {
			return err
		}
	}
	return nil
}

func (q *queryRequest) set(f *field, typ protowire.Type) error {
	switch {
	case f.num == queryTag && typ == protowire.VarintType:
		q.tag = f.varint
	case f.num == queryTimeout && typ == protowire.BytesType:
		q.timeout = new(durationpb.Duration)
		return proto.Unmarshal(f.bytes, q.timeout)
	case f.num == queryCancel && typ == protowire.VarintType, f.num > queryTag && f.num < queryCancel && typ == protowire.BytesType:
		q.several = q.several || q.kind != 0
		q.kind, q.call, q.cancel = f.num, f.bytes, f.varint
	}
	return nil // a field of a later version
}
