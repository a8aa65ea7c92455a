package read

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
)

// token is a place in a paged answer. It names the process that made it and the
// snapshots that the next page must come from; pin zero is any.
//
// A process signs its tokens with a key that it does not keep, and knows its
// own. The tokens of another process it cannot check, and need not: they name no
// snapshot of this one, so that all they give is a place to go on from in a new
// snapshot, which the caller could also have asked for by other means.
type token struct {
	maker   uint64 // the process
	query   uint64 // fingerprint of the request it belongs to
	pin     uint64
	passed  uint64 // objects before the place
	cluster string // of the last key, in an answer that covers several
	after   string // last key or value given
	uppers  uppers // of what the pages so far held: the next may come from a new snapshot, which must not be older
	scope   uint64 // a print of what was visible to the caller; 0 for all
}

const (
	tokenVersion = 3
	tokenScoped  = 4 // the same, with the scope behind the head
	tokenHead    = 1 + 8 + 8
	tokenMAC     = 8
	tokenTail    = tokenMAC + 4
	// MaxToken is longer than any token made: it holds one cluster, and a key or a
	// value of an index, which may be as long as an object.
	MaxToken = 4 << 20
)

// signer makes and reads tokens. It is safe for concurrent use.
type signer struct {
	maker uint64
	key   [32]byte
}

func newSigner() *signer {
	s := &signer{}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	_, _ = rand.Read(s.key[:])
	s.maker = binary.BigEndian.Uint64(id[:])
	return s
}

func (s *signer) mac(body []byte) []byte {
	h := hmac.New(sha256.New, s.key[:])
	_, _ = h.Write(body)
	return h.Sum(nil)[:tokenMAC]
}

// write makes t this process's own and returns it as text that passes through
// URLs and shells.
func (s *signer) write(t token) string {
	b := make([]byte, 0, 64+len(t.cluster)+len(t.after))
	version := byte(tokenVersion)
	if t.scope != 0 {
		version = tokenScoped
	}
	b = append(b, version)
	b = binary.BigEndian.AppendUint64(b, s.maker)
	b = binary.BigEndian.AppendUint64(b, t.query)
	if t.scope != 0 {
		b = binary.BigEndian.AppendUint64(b, t.scope)
	}
	b = binary.AppendUvarint(b, t.pin)
	b = binary.AppendUvarint(b, t.passed)
	b = binary.AppendUvarint(b, uint64(len(t.cluster)))
	b = append(b, t.cluster...)
	b = binary.AppendUvarint(b, uint64(len(t.uppers)))
	for _, cluster := range slices.Sorted(maps.Keys(t.uppers)) {
		at := t.uppers[cluster]
		b = append(binary.AppendUvarint(b, uint64(len(cluster))), cluster...)
		b = binary.AppendUvarint(b, at.Epoch)
		b = append(binary.AppendUvarint(b, uint64(len(at.RV))), at.RV...)
	}
	b = append(b, t.after...)
	b = append(b, s.mac(b)...)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return base64.RawURLEncoding.EncodeToString(b)
}

var (
	errToken       = errors.New("is not a page token of this service, or a part of one")
	errTokenForged = errors.New("was changed after this replica made it")
	errTokenQuery  = errors.New("belongs to another request; the rest of the request must stay the same")
)

// read reads what some process wrote, for one request.
func (s *signer) read(text string, query uint64) (token, error) {
	t, err := s.parse(text)
	if err == nil && t.query != query {
		err = errTokenQuery
	}
	if err != nil {
		return token{}, rpc.InvalidField("page_token", err)
	}
	return t, nil
}

func (s *signer) parse(text string) (token, error) {
	if len(text) > MaxToken {
		return token{}, errToken
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < tokenHead+4+tokenTail || b[0] != tokenVersion && b[0] != tokenScoped {
		return token{}, errToken
	}
	sum := len(b) - 4
	if crc32.ChecksumIEEE(b[:sum]) != binary.BigEndian.Uint32(b[sum:]) {
		return token{}, errToken
	}
	body, mac := b[:len(b)-tokenTail], b[len(b)-tokenTail:sum]
	t := token{maker: binary.BigEndian.Uint64(body[1:]), query: binary.BigEndian.Uint64(body[9:])}
	if t.maker == s.maker && !hmac.Equal(mac, s.mac(body)) {
		return token{}, errTokenForged
	}
	scoped := body[0] == tokenScoped
	body = body[tokenHead:]
	if scoped {
		if len(body) < 8 {
			return token{}, errToken
		}
		if t.scope, body = binary.BigEndian.Uint64(body), body[8:]; t.scope == 0 {
			return token{}, errToken
		}
	}
	var cluster uint64
	for _, v := range []*uint64{&t.pin, &t.passed, &cluster} {
		n := 0
		if *v, n = binary.Uvarint(body); n <= 0 {
			return token{}, errToken
		}
		body = body[n:]
	}
	if cluster > uint64(len(body)) {
		return token{}, errToken
	}
	t.cluster, body = string(body[:cluster]), body[cluster:]
	var ok bool
	if t.uppers, body, ok = readUppers(body); !ok {
		return token{}, errToken
	}
	t.after = string(body)
	return t, nil
}

// uppers are upper bounds of collections, by cluster; "" in an answer of one
// collection.
type uppers map[string]delta.Revision

// of is that of a collection; zero, which every snapshot meets, when there is none.
func (u uppers) of(c *follow.Collection) delta.Revision {
	if at, ok := u[c.ID.Cluster]; ok {
		return at
	}
	return u[""]
}

// readUppers reads what a token says of them, and returns what follows.
func readUppers(body []byte) (u uppers, rest []byte, ok bool) {
	number := func() (v uint64) {
		n := 0
		if v, n = binary.Uvarint(body); n <= 0 {
			ok = false
			return 0
		}
		body = body[n:]
		return v
	}
	text := func() string {
		n := number()
		if ok = ok && n <= uint64(len(body)); !ok {
			return ""
		}
		s := string(body[:n])
		body = body[n:]
		return s
	}
	ok = true
	u = uppers{}
	for n := number(); ok && n > 0; n-- {
		cluster, at := text(), delta.Revision{Epoch: number()}
		if rv := text(); rv != "" {
			var err error
			at.RV, err = delta.ParseRV(rv)
			ok = ok && err == nil
		}
		u[cluster] = at
	}
	return u, body, ok
}
