package payload

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
)

// ErrCorrupt is wrapped by the errors of stored bytes that are not what was
// stored.
var ErrCorrupt = errors.New("payload: stored bytes are corrupt")

// errEmpty is said of bytes that hold nothing: nothing is never stored.
var errEmpty = errors.New("nothing is stored")

const (
	// MaxPayload is the longest payload that is compressed; longer ones stay as
	// they are.
	MaxPayload = 8 << 20
	// window is how far back the coder looks: over the dictionary and all but the
	// longest payloads.
	window = 1 << 20
)

// Dictionary is a way to store the payloads of one collection. It is immutable
// and safe for concurrent use.
type Dictionary struct {
	id      uint32
	content []byte
	decoder *zstd.Decoder
	count   atomic.Pointer[atomic.Int64] // of what could not be decoded
}

// Open returns the dictionary that has these contents, which must not be
// changed afterwards: those of another one's Bytes, also of another process.
func Open(content []byte) (*Dictionary, error) {
	info, err := zstd.InspectDictionary(content)
	if err != nil {
		return nil, fmt.Errorf("open dictionary: %w", err)
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderDicts(content), zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)),
		zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(MaxPayload))
	if err != nil {
		return nil, fmt.Errorf("open dictionary: %w", err)
	}
	d := &Dictionary{id: info.ID(), content: content, decoder: decoder}
	d.count.Store(new(atomic.Int64))
	return d, nil
}

// ID tells dictionaries of one collection apart. It is never zero.
func (d *Dictionary) ID() uint32 { return d.id }

// Bytes are what Open needs to make the same dictionary. They must not be
// changed.
func (d *Dictionary) Bytes() []byte { return d.content }

// Failed is how many payloads could not be decoded; those of all dictionaries of
// a [Keeper] together.
func (d *Dictionary) Failed() int { return int(d.count.Load().Load()) }

// Decode appends what was stored to dst: 5 to 12 us for 5 KB. The bytes carry a
// checksum; if they are not those that were encoded with this dictionary the
// error wraps [ErrCorrupt] and dst is returned as it was.
func (d *Dictionary) Decode(dst, stored []byte) ([]byte, error) {
	out, err := d.decoder.DecodeAll(stored, dst)
	if err == nil && len(out) == len(dst) {
		err = errEmpty
	}
	if err != nil {
		d.count.Load().Add(1)
		return dst, fmt.Errorf("%w: dictionary %d: %w", ErrCorrupt, d.id, err)
	}
	return out, nil
}

// Encoder compresses payloads with a dictionary. It takes about a megabyte, and
// is for one goroutine.
type Encoder struct {
	dictionary *Dictionary
	zstd       *zstd.Encoder
	buf        []byte
}

// Encoder returns a coder that writes what d reads.
func (d *Dictionary) Encoder() (*Encoder, error) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderDict(d.content), zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(window), zstd.WithSingleSegment(true), zstd.WithEncoderCRC(true), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("dictionary %d: %w", d.id, err)
	}
	return &Encoder{dictionary: d, zstd: e}, nil
}

// Dictionary is what the coder writes for.
func (e *Encoder) Dictionary() *Dictionary { return e.dictionary }

// worth is the share of its length that a payload must lose to be worth a
// decoder's time.
const worth = 0.2

// Encode returns how to store a payload, valid until the next call, and false
// when it is better left as it is.
func (e *Encoder) Encode(payload []byte) ([]byte, bool) {
	if len(payload) == 0 || len(payload) > MaxPayload {
		return nil, false
	}
	e.buf = e.zstd.EncodeAll(payload, e.buf[:0])
	return e.buf, float64(len(e.buf)) < (1-worth)*float64(len(payload))
}
