package indexer_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// Every write has one place in the order, so that the revision an answer states
// says which version of each key is in it.
func TestBatchGetIsOfTheOneRevisionThatItStates(t *testing.T) {
	t.Parallel()
	const pairs, rounds = 32, 12
	w := newWorld(t)
	keys := make([]string, 0, 2*pairs)
	records := make([]delta.Record, 0, 2*pairs)
	for i := range pairs { // the two of a pair always change together, the left one first
		for _, side := range []string{"left", "right"} {
			key := fmt.Sprintf("%s/p%d", side, i)
			keys, records = append(keys, key), append(records, pod(key, options{}))
		}
	}
	w.start(t, records...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	base := w.rv + 1 // of the first write of the first round
	version := func(i, revision int) int {
		if written := revision - base; written >= i {
			return revision - (written-i)%len(keys)
		}
		return i + 1 // of before the rounds
	}

	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		rnd, seen, apart := rand.New(rand.NewPCG(1, 2)), map[int]bool{}, 0
		check := func() error {
			order := rnd.Perm(len(keys))
			req := &indexv1.BatchGetRequest{Collection: podsName}
			for _, i := range order {
				req.Keys = append(req.Keys, keys[i])
			}
			resp, err := r.BatchGet(t.Context(), req)
			if err != nil {
				return err
			}
			revision, err := strconv.Atoi(resp.GetRevision().GetResourceVersion())
			if err != nil || resp.GetRevision().GetEpoch() != w.w.Epoch() || len(resp.GetObjects()) != len(keys) {
				return fmt.Errorf("revision %v with %d objects, want all %d", resp.GetRevision(), len(resp.GetObjects()), len(keys))
			}
			if seen[revision] = true; revision >= base && (revision-base)%len(keys) != len(keys)-1 {
				apart++
			}
			for n, o := range resp.GetObjects() {
				if want := version(order[n], revision); o.GetKey() != keys[order[n]] || o.GetResourceVersion() != strconv.Itoa(want) {
					return fmt.Errorf("at revision %d: %s at %s, want %s at %d", revision, o.GetKey(), o.GetResourceVersion(), keys[order[n]], want)
				}
			}
			return nil
		}
		for {
			select {
			case <-stop:
				if err := check(); err != nil {
					done <- err
				} else if len(seen) < 3 || apart == 0 {
					done <- errors.New("no answer was of the middle of a round: nothing was tested")
				} else {
					done <- nil
				}
				return
			default:
				if err := check(); err != nil {
					done <- err
					return
				}
			}
		}
	}()
	rnd := rand.New(rand.NewPCG(3, 4))
	for range rounds {
		var round []delta.Record
		for _, key := range keys {
			round = append(round, pod(key, options{}))
		}
		for len(round) > 0 {
			n := min(1+rnd.IntN(9), len(round)) // also between the two of a pair
			w.put(t, round[:n]...)
			round = round[n:]
		}
		w.caughtUp(t, r) // the log keeps the newest of a key: none is replaced before it is read
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
