package indexer

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"hash/fnv"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// token is a place in a paged answer. It names the replica and the snapshot
// that the next page must come from; snapshot zero is any.
type token struct {
	replica  uint64
	snapshot uint64
	query    uint64 // fingerprint of the request it belongs to
	passed   uint64 // entries before the place, in a list without selectors
	after    string // last key or value given
}

const tokenVersion = 1

// String writes the token so that it passes through URLs and shells.
func (t token) String() string {
	b := []byte{tokenVersion}
	b = binary.BigEndian.AppendUint64(b, t.replica)
	b = binary.BigEndian.AppendUint64(b, t.query)
	b = binary.AppendUvarint(b, t.snapshot)
	b = binary.AppendUvarint(b, t.passed)
	b = append(b, t.after...)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return base64.RawURLEncoding.EncodeToString(b)
}

var errToken = errors.New("is not a page token of this service")

// parseToken reads what String wrote, for one request.
func parseToken(s string, query uint64) (token, error) {
	var t token
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) < 1+8+8+1+1+4 || b[0] != tokenVersion {
		return t, rpc.InvalidField("page_token", errToken)
	}
	body, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if crc32.ChecksumIEEE(body) != sum {
		return t, rpc.InvalidField("page_token", errToken)
	}
	t.replica, t.query = binary.BigEndian.Uint64(body[1:]), binary.BigEndian.Uint64(body[9:])
	body = body[17:]
	for _, v := range []*uint64{&t.snapshot, &t.passed} {
		n := 0
		if *v, n = binary.Uvarint(body); n <= 0 {
			return t, rpc.InvalidField("page_token", errToken)
		}
		body = body[n:]
	}
	t.after = string(body)
	if t.query != query {
		return t, rpc.InvalidArgument("page_token", "belongs to another request; the rest of the request must stay the same")
	}
	return t, nil
}

// fingerprint tells requests apart by what decides their answer.
func fingerprint(parts ...string) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(p))))
		_, _ = h.Write([]byte(p))
	}
	return h.Sum64()
}

// pins keeps the snapshots that page tokens name, for a time after their last
// use and up to a number. It is safe for concurrent use.
type pins struct {
	replica uint64
	max     int
	ttl     time.Duration

	mu     sync.Mutex
	next   uint64
	byID   map[uint64]*pin
	bySnap map[*store.Snapshot]*pin
}

type pin struct {
	id   uint64
	snap *store.Snapshot
	used time.Time
}

func newPins(replica string, limit int, ttl time.Duration) *pins {
	return &pins{
		replica: fingerprint(replica), max: limit, ttl: ttl,
		byID: map[uint64]*pin{}, bySnap: map[*store.Snapshot]*pin{},
	}
}

// hold keeps a snapshot and returns its number. Beyond the limit the one least
// recently used goes.
func (p *pins) hold(snap *store.Snapshot, now time.Time) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if held, ok := p.bySnap[snap]; ok {
		held.used = now
		return held.id
	}
	if len(p.byID) >= p.max {
		var oldest *pin
		for _, held := range p.byID {
			if oldest == nil || held.used.Before(oldest.used) {
				oldest = held
			}
		}
		p.drop(oldest)
	}
	p.next++
	held := &pin{id: p.next, snap: snap, used: now}
	p.byID[held.id], p.bySnap[snap] = held, held
	return held.id
}

// get returns a snapshot held, nil when it is gone.
func (p *pins) get(id uint64, now time.Time) *store.Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	held, ok := p.byID[id]
	if !ok {
		return nil
	}
	held.used = now
	return held.snap
}

// expire lets go of what has not been used for the TTL.
func (p *pins) expire(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, held := range p.byID {
		if now.Sub(held.used) > p.ttl {
			p.drop(held)
		}
	}
}

func (p *pins) drop(held *pin) {
	delete(p.byID, held.id)
	delete(p.bySnap, held.snap)
}

func (p *pins) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.byID)
}
