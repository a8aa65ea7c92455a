package main

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
