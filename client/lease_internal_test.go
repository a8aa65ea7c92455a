package client

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A server's clock that runs by a thousandth faster or slower, and messages
// that take any time: what an anchor allows is before the lease's end.
func TestNoAnchorAllowsMoreThanTheServersClock(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		rate, origin := 1+(r.Float64()-0.5)/500, time.Now()
		serverAt := func(at time.Duration) int64 { return 1 + int64(float64(at.Microseconds())*rate) }
		any := func() time.Duration { return time.Duration(r.Int64N(int64(10 * time.Second))) }
		var a anchor
		now := time.Duration(0)
		for range 10 {
			sent := now
			a = a.or(anchor{origin.Add(sent), serverAt(sent + any())})
			now = sent + any()
			ends := serverAt(now) + any().Microseconds()
			if held := a.at(ends).Sub(origin); held > 0 && serverAt(held) > ends {
				t.Fatalf("held until %v, when the server's clock shows %d, and the lease ends at %d", held, serverAt(held), ends)
			}
		}
	}
}
