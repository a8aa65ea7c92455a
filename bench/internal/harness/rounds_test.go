package harness

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
)

func TestSidesTakeTurnsAndTheFirstIsNotCounted(t *testing.T) {
	t.Parallel()
	var order []string
	turn := func(name string) Side {
		return Side{name, func() func(context.Context, time.Duration) (map[string]float64, error) {
			n := 0.
			return func(context.Context, time.Duration) (map[string]float64, error) {
				n++
				order = append(order, name)
				return map[string]float64{"n": n}, nil
			}
		}()}
	}
	for want, rotate := range map[string]bool{"abcabcabcabc": false, "abcabcacbcab": true} {
		order = nil
		b := &Bench{stderr: &bytes.Buffer{}}
		got, err := Interleave(t.Context(), b, Plan{What: "test", Rounds: 3, Turn: time.Millisecond, Rotate: rotate}, turn("a"), turn("b"), turn("c"))
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(order, ""); text != want {
			t.Errorf("order %q, want %s", text, want)
		}
		if n := got.Of("b", "n"); len(n) != 3 || n[0]+n[1]+n[2] != 9 {
			t.Errorf("b's rounds = %v, want 2, 3 and 4", n)
		}
	}
}
