package engine_test

import (
	"hash/fnv"
	"strconv"
	"testing"

	"github.com/deltaplane/deltaplane/services/queue/engine"
)

func TestAKeyIsInTheSamePartitionEverywhere(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "a", "default/some-job", "kube-system/日本語", string([]byte{0, 0xff})} {
		h := fnv.New32a()
		_, _ = h.Write([]byte(key))
		for n := 2; n <= 64; n++ {
			if got, want := engine.PartitionOf(key, n), int(h.Sum32()%uint32(n)); got != want {
				t.Errorf("PartitionOf(%q, %d) = %d, want %d", key, n, got, want)
			}
		}
		if engine.PartitionOf(key, 1) != 0 || engine.PartitionOf(key, 0) != 0 {
			t.Errorf("%q is not in the only partition", key)
		}
	}
}

func TestKeysSpreadOverPartitions(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3, 4, 8, 16, 64} {
		counts := make([]int, n)
		const keys = 64_000
		for i := range keys {
			counts[engine.PartitionOf("default/some-job-"+strconv.Itoa(i), n)]++
		}
		for p, c := range counts {
			if c < keys/n*85/100 || c > keys/n*115/100 {
				t.Errorf("%d of %d keys are in partition %d of %d", c, keys, p, n)
			}
		}
	}
}
