package main

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

	"github.com/deltaplane/deltaplane/core/delta"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// hash is the state hash of what was published: see stateHash.
func (s *source) hash() string { return hashOf(s.state) }

// hashOf is the state hash of objects.
func hashOf(state map[delta.Key]objectState) string {
	h := newStateHash()
	for _, key := range sortedKeys(state) {
		h.add(string(key), state[key].rv, state[key].hash)
	}
	return h.sum()
}

func (s *source) versions() string {
	versions := make([]string, 0, len(s.state))
	for key, o := range s.state {
		versions = append(versions, string(key)+"="+o.rv)
	}
	return versionHash(versions)
}

// sortedKeys are the keys by namespace, then by name, as a collection lists them.
func sortedKeys(state map[delta.Key]objectState) []delta.Key {
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

func newStateHash() *stateHash { return &stateHash{all: sha256.New()} }

func (h *stateHash) add(key, rv string, payload uint64) {
	h.n++
	h.line = append(append(append(h.line[:0], key...), '='), rv...)
	h.line = append(strconv.AppendUint(append(h.line, '@'), payload, 16), '\n')
	_, _ = h.all.Write(h.line) // a hash takes everything
}

func (h *stateHash) sum() string {
	return fmt.Sprintf("%d:%s", h.n, hex.EncodeToString(h.all.Sum(nil)))
}

// errDiffers says that an indexer does not hold what was published.
var errDiffers = errors.New("the indexer does not hold what the source published")

// verifyIndex reads a whole collection by pages and compares its state hash with the
// source's. Keys that do not rise fail too.
func verifyIndex(ctx context.Context, conns pool, collection, want string) error {
	client, h, last := indexv1.NewIndexServiceClient(conns[0]), newStateHash(), ""
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
			h.add(last, o.GetResourceVersion(), delta.Hash(o.GetPayload()))
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if got := h.sum(); got != want {
		return fmt.Errorf("%w: state hash %s, want %s", errDiffers, got, want)
	}
	return nil
}
