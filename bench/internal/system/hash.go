package system

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strconv"
	"strings"

	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/core/delta"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// hash is the state hash of what was published: see stateHash.
func (s *source) hash() string { return HashOf(s.state) }

// HashOf is the state hash of objects.
func HashOf(state map[delta.Key]ObjectState) string {
	h := NewStateHash()
	for _, key := range SortedKeys(state) {
		h.Add(string(key), state[key].RV, state[key].Hash)
	}
	return h.Sum()
}

func (s *source) versions() string {
	versions := make([]string, 0, len(s.state))
	for key, o := range s.state {
		versions = append(versions, string(key)+"="+o.RV)
	}
	return VersionHash(versions)
}

// SortedKeys are the keys by namespace, then by name, as a collection lists them.
func SortedKeys(state map[delta.Key]ObjectState) []delta.Key {
	keys := make([]delta.Key, 0, len(state))
	for key := range state {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b delta.Key) int { return compareKeys(string(a), string(b)) })
	return keys
}

func compareKeys(a, b string) int {
	aSpace, aName, _ := strings.Cut(a, "/")
	bSpace, bName, _ := strings.Cut(b, "/")
	if c := strings.Compare(aSpace, bSpace); c != 0 {
		return c
	}
	return strings.Compare(aName, bName)
}

// stateHash folds keys, versions and payload hashes, in the order of the keys.
type stateHash struct {
	n    int
	line []byte
	all  hash.Hash
}

// NewStateHash begins a hash over keys, versions and payloads.
func NewStateHash() *stateHash { return &stateHash{all: sha256.New()} }

// Add counts one object in.
func (h *stateHash) Add(key, rv string, payload uint64) {
	h.n++
	h.line = append(append(append(h.line[:0], key...), '='), rv...)
	h.line = append(strconv.AppendUint(append(h.line, '@'), payload, 16), '\n')
	_, _ = h.all.Write(h.line) // a hash takes everything
}

// Sum is the hash of all that were added, in order.
func (h *stateHash) Sum() string {
	return fmt.Sprintf("%d:%s", h.n, hex.EncodeToString(h.all.Sum(nil)))
}

// errDiffers says that an indexer does not hold what was published.
var errDiffers = errors.New("the indexer does not hold what the source published")

// VerifyIndex reads a whole collection by pages and compares its state hash with the
// source's. Keys that do not rise fail too.
func VerifyIndex(ctx context.Context, conns load.Pool, collection, want string) error {
	client, h, last := indexv1.NewIndexServiceClient(conns[0]), NewStateHash(), ""
	for token := ""; ; {
		page, err := client.List(ctx, &indexv1.ListRequest{Collection: collection, PageSize: 500, PageToken: token})
		if err != nil {
			return fmt.Errorf("state hash of %s: %w", collection, err)
		}
		for _, o := range page.GetObjects() {
			if last != "" && compareKeys(last, o.GetKey()) >= 0 {
				return fmt.Errorf("%w: %s comes after %s", errDiffers, o.GetKey(), last)
			}
			last = o.GetKey()
			h.Add(last, o.GetResourceVersion(), delta.Hash(o.GetPayload()))
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if got := h.Sum(); got != want {
		return fmt.Errorf("%w: state hash %s, want %s", errDiffers, got, want)
	}
	return nil
}

// VersionHash sums up "key=version" strings in any order.
func VersionHash(versions []string) string {
	slices.Sort(versions)
	sum := sha256.Sum256([]byte(strings.Join(versions, "\n")))
	return fmt.Sprintf("%d:%s", len(versions), hex.EncodeToString(sum[:]))
}
