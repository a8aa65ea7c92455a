// Package seal encrypts payloads with the keys of a file, by AES-256-GCM.
//
// The file has one key a line: 32 bytes in base64. The first encrypts, all decrypt. It is read
// again when it changes, so that keys are rotated in a running process: a new key is put last in
// the files of all processes, then first, and an old one is removed when nothing is encrypted with
// it any more.
//
// What is sealed is
//
//	version:1 key:4 nonce:12 ciphertext tag:16
//
// and is bound to what it is about, which must be the same when it is opened. Nonces are random: a
// key is good for four billion payloads.
package seal

import (
	"bytes"
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/deltaplane/deltaplane/internal/certs"
)

const (
	keyBytes = 32
	version  = 1
	idBytes  = 4
	head     = 1 + idBytes
	// Overhead is how much longer sealed bytes are.
	Overhead = head + 12 + 16
	// maxFile is more than any file of keys has.
	maxFile = 64 << 10
)

// ErrDamaged says that bytes are not what was sealed, or are about something else.
var ErrDamaged = errors.New("seal: what was encrypted is damaged")

// UnknownKeyError says that bytes are sealed with a key that the file does not have.
type UnknownKeyError struct {
	// ID of the key, as [Keys.IDs] writes it.
	ID string
}

// Error implements error.
func (e *UnknownKeyError) Error() string {
	return "seal: encrypted with the key " + e.ID + ", which the key file does not have"
}

// key is one line of the file, and what is derived from it.
type key struct {
	id   [idBytes]byte
	name string // id in hexadecimal
	aead cipher.AEAD
	mac  []byte // of hashes
}

// Keys are those of a file. They are safe for concurrent use.
type Keys struct {
	path  string
	files *certs.Files[[]*key]
}

// Open reads a file of keys. The error names the line that is wrong.
func Open(path string) (*Keys, error) {
	files, err := certs.OpenFiles(func() ([]*key, error) {
		text, err := read(path)
		if err != nil {
			return nil, err
		}
		return parse(text)
	}, path)
	k := &Keys{path: path, files: files}
	if err != nil {
		return nil, k.named(err)
	}
	return k, nil
}

// named says of which file an error is.
func (k *Keys) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("encryption keys %s: %w", k.path, err)
}

// NewFile is the text of a file with one new key.
func NewFile() ([]byte, error) {
	secret := make([]byte, keyBytes)
	_, _ = rand.Read(secret) // it never fails
	return append(base64.StdEncoding.AppendEncode(nil, secret), '\n'), nil
}

// Check returns why the file, as it is now, cannot be used; the keys of before are used meanwhile.
func (k *Keys) Check() error { return k.named(k.files.Check()) }

func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("has %d bytes, at most %d", info.Size(), maxFile)
	}
	return os.ReadFile(path)
}

// parse reads the lines of a file; those that begin with # are comments.
func parse(text []byte) (keys []*key, err error) {
	ids, n := map[[idBytes]byte]bool{}, 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		secret, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(secret) != keyBytes {
			return nil, fmt.Errorf("line %d: want %d bytes in base64", n, keyBytes) // without the line: it is nearly a key
		}
		k, err := newKey(secret)
		if err != nil {
			return nil, err
		}
		if ids[k.id] {
			return nil, fmt.Errorf("line %d: the key is there already", n)
		}
		ids[k.id] = true
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, errors.New("has no key")
	}
	return keys, nil
}

// newKey derives a key for each use, so that none tells of another.
func newKey(secret []byte) (*key, error) {
	derive := func(use string, n int) []byte {
		out, err := hkdf.Key(sha256.New, secret, nil, "deltaplane "+use, n)
		if err != nil {
			panic(err) // the length is a constant that it takes
		}
		return out
	}
	block, err := aes.NewCipher(derive("payload", keyBytes))
	if err != nil {
		return nil, err
	}
	k := &key{mac: derive("hash", keyBytes)}
	copy(k.id[:], derive("id", idBytes))
	k.name = hex.EncodeToString(k.id[:])
	k.aead, err = cipher.NewGCMWithRandomNonce(block)
	return k, err
}

// current are the keys of the file, the first encrypts.
func (k *Keys) current() []*key { return k.files.Get() }

// IDs name the keys, in their order.
func (k *Keys) IDs() (ids []string) {
	for _, one := range k.current() {
		ids = append(ids, one.name)
	}
	return ids
}

// First names the key that encrypts, as IDs does.
func (k *Keys) First() string { return k.current()[0].name }

// KeyID names the key that bytes which Seal made are encrypted with, as IDs does.
func KeyID(sealed []byte) string { return hex.EncodeToString(sealed[1:head]) }

// Seal encrypts bytes that are about something.
func (k *Keys) Seal(payload, about []byte) []byte {
	first := k.current()[0]
	out := make([]byte, 0, len(payload)+Overhead)
	out = append(append(out, version), first.id[:]...)
	return first.aead.Seal(out, nil, payload, bound(out[:head], about))
}

// Open decrypts what Seal encrypted; nil keys have none. The errors are an [UnknownKeyError] and
// [ErrDamaged].
func (k *Keys) Open(sealed, about []byte) ([]byte, error) {
	if len(sealed) < Overhead || sealed[0] != version {
		return nil, ErrDamaged
	}
	id := [idBytes]byte(sealed[1:])
	var keys []*key
	if k != nil {
		keys = k.current()
	}
	for _, one := range keys {
		if one.id == id {
			payload, err := one.aead.Open(nil, nil, sealed[head:], bound(sealed[:head], about))
			if err != nil {
				return nil, ErrDamaged
			}
			return payload, nil
		}
	}
	return nil, &UnknownKeyError{ID: KeyID(sealed)}
}

func bound(head, about []byte) []byte { return append(bytes.Clone(head), about...) }

// Hash hides a hash of a payload: without the key nobody can try payloads until one has it. It is
// never 0, but of 0, and another one under another first key.
func (k *Keys) Hash(hash uint64) uint64 {
	if hash == 0 {
		return 0
	}
	m := hmac.New(sha256.New, k.current()[0].mac)
	_, _ = m.Write(binary.BigEndian.AppendUint64(nil, hash))
	return cmp.Or(binary.BigEndian.Uint64(m.Sum(nil)), 1)
}
