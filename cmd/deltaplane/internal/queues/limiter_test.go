package queues

import (
	"testing"

	"google.golang.org/protobuf/proto"
)

func FuzzALimiterReadIsReadAgainAsItIsWritten(f *testing.F) {
	for _, text := range []string{"exponential:5ms,1000s+bucket:10,100", "fast-slow:5ms,10s,3@30s", "bucket:1e300,9", "bucket:NaN,1", "+@", ":,,"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		limiter, err := parseLimiter(text)
		if err != nil {
			return
		}
		again, err := parseLimiter(formatLimiter(limiter))
		if err != nil || !proto.Equal(limiter, again) {
			t.Errorf("%q is written %q, which is read as %v, %v", text, formatLimiter(limiter), again, err)
		}
	})
}

func TestLimitersAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"exponential:5ms,16m40s", "bucket:0.5,1", "fast-slow:5ms,10s,3", "fast-slow:1ms,2s,3+bucket:10,100", "exponential:5ms,1m0s+bucket:10,100@30s"} {
		limiter, err := parseLimiter(text)
		if err != nil || formatLimiter(limiter) != text {
			t.Errorf("%q is %q, %v", text, formatLimiter(limiter), err)
		}
	}
	for _, text := range []string{"", "exponential", "exponential:5ms", "exponential:x,1s", "bucket:1", "bucket:1,y", "fast-slow:1s,2s,z", "bucket:1,1@soon", "bucket:1,1+"} {
		if limiter, err := parseLimiter(text); err == nil {
			t.Errorf("%q is taken for %v", text, limiter)
		}
	}
}
