package link

import (
	"errors"

	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/seal"
)

// Encrypts reports whether the payloads of col are encrypted.
func (c *Conn) Encrypts(col delta.Collection) bool {
	return c.Config.Encryption.Covers(col.Group, col.Resource)
}

// Key is the key that payloads of col are encrypted with at present; empty where they are not.
func (c *Conn) Key(col delta.Collection) string {
	if !c.Encrypts(col) {
		return ""
	}
	return c.Config.Encryption.Keys.First()
}

// Encode makes the message of a record: its payload is encrypted where the collection's are, and
// the checksum is then that of the encrypted bytes.
func (c *Conn) Encode(r *delta.Record) *nats.Msg {
	if len(r.Payload) > 0 && r.Encoding == delta.EncodingJSON && c.Encrypts(r.Collection) {
		sealed := *r
		sealed.Payload = c.Config.Encryption.Keys.Seal(r.Payload, about(r))
		sealed.Encoding, sealed.Checksum, sealed.Sealed = delta.EncodingSealed, 0, seal.KeyID(sealed.Payload)
		r = &sealed
	}
	return &nats.Msg{Subject: r.Subject(), Header: r.Header(), Data: r.Payload}
}

// about is what an encrypted payload belongs to: under another key or version it is damaged.
func about(r *delta.Record) []byte {
	var b []byte
	for _, s := range []string{r.Collection.String(), string(r.Key), r.UID, r.RV} {
		b = append(append(b, s...), 0)
	}
	return b
}

// Decode reads the record of a message, and decrypts its payload. The error of one that is
// encrypted with a key which this process does not have wraps a [delta.UnknownError]. A payload
// that was encrypted with a known key and is damaged does not match the record's checksum.
func (c *Conn) Decode(subject string, h nats.Header, data []byte, seq uint64) (delta.Record, error) {
	r, err := delta.DecodeRecord(subject, h, data)
	r.Sequence = seq
	if err != nil || r.Encoding != delta.EncodingSealed {
		return r, err
	}
	r.Encoding = delta.EncodingJSON
	if len(data) == 0 { // a reader of headers
		return r, nil
	}
	payload, err := c.Config.Encryption.Keys.Open(data, about(&r))
	if unknown, ok := errors.AsType[*seal.UnknownKeyError](err); ok {
		return r, &delta.UnknownError{Part: delta.PartKey, Value: unknown.ID}
	}
	if err != nil {
		r.Payload, r.Checksum = nil, damaged
		return r, nil
	}
	r.Payload, r.Hash, r.Checksum = payload, delta.Hash(payload), delta.Checksum(payload)
	return r, nil
}

// damaged is a checksum that no payload is without.
const damaged = 1

// Hash is the hash under which a payload of col is published: where payloads are encrypted, nobody
// without the key can try by it what a payload is. A new key gives other hashes, so that the next
// list publishes every object again, encrypted with it.
func (c *Conn) Hash(col delta.Collection, hash uint64) uint64 {
	if !c.Encrypts(col) {
		return hash
	}
	return c.Config.Encryption.Keys.Hash(hash)
}
