package delta_test

import (
	"fmt"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
)

// The parts are on the wire: they never change.
func TestADigestIsTheSameInEveryVersion(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		key  string
		rv   delta.RV
		want delta.Digest
	}{
		{"d/a", "5", 0xf1f798ca2225cf8b}, {"node-1", "18446744073709551616", 0x54963849617c8b50}, {"d/a", "", 0xffe53118c8fa64bb},
	} {
		if got := delta.DigestOf(row.key, row.rv); got != row.want {
			t.Errorf("DigestOf(%q, %q) = %#x, want %#x", row.key, row.rv, got, row.want)
		}
	}
	if delta.DigestOf("d/a", "0005") != delta.DigestOf("d/a", "5") || delta.DigestOfNumber("d/a", 5) != delta.DigestOf("d/a", "5") {
		t.Error("one version in another form has another digest")
	}
}

// Small sets of similar keys and versions, as a namespace has them, come to different sums.
func TestDigestsOfNeighboursDiffer(t *testing.T) {
	t.Parallel()
	seen := map[delta.Digest]string{}
	for i := range 40 {
		for j := range 40 {
			for rv := range 8 {
				what := fmt.Sprintf("d/p-%d@%d d/p-%d@%d", i, 100+rv, j, 104)
				if i >= j {
					continue
				}
				d := delta.DigestOfNumber(fmt.Sprintf("d/p-%d", i), uint64(100+rv)) + delta.DigestOfNumber(fmt.Sprintf("d/p-%d", j), 104)
				if other, ok := seen[d]; ok {
					t.Fatalf("%s and %s have one digest", what, other)
				}
				seen[d] = what
			}
		}
	}
}

func BenchmarkDigest(b *testing.B) {
	for b.Loop() {
		total += delta.DigestOfNumber("namespace-12/deployment-7d9f8b6c5-x2kqz", 123456789)
	}
}

var total delta.Digest
