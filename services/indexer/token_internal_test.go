package indexer

import (
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/store"
)

func TestPinsAreLetGoAfterTheirTTLAndBeyondTheirNumber(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	p := newPins("r", 2, time.Minute)
	a, b, c := &store.Snapshot{}, new(*store.New(store.Options{}).Snapshot()), new(*store.New(store.Options{}).Snapshot())
	ida, idb := p.hold(a, now), p.hold(b, now.Add(time.Second))
	if p.hold(a, now.Add(2*time.Second)) != ida {
		t.Error("a snapshot held twice got two numbers")
	}
	idc := p.hold(c, now.Add(3*time.Second))
	if p.get(idb, now) != nil || p.len() != 2 {
		t.Error("the snapshot least recently used is still held")
	}
	p.get(ida, now.Add(30*time.Second))
	p.expire(now.Add(time.Minute + 4*time.Second))
	if p.get(ida, now) != a || p.get(idc, now) != nil {
		t.Error("expiry does not go by the last use")
	}
}

func FuzzParseTokenNeverPanicsAndTakesOnlyItsOwn(f *testing.F) {
	f.Add(token{replica: 1, snapshot: 2, query: 3, passed: 4, after: "n/a"}.String())
	f.Add("")
	f.Add(strings.Repeat("A", 64))
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseToken(s, 3)
		if err == nil && got.String() != s {
			// Trailing bits of base64 may differ; what was read must not.
			if again, err := parseToken(got.String(), 3); err != nil || again != got {
				t.Errorf("token %+v does not survive writing", got)
			}
		}
	})
}
