package stream

import (
	"strings"
	"testing"
)

// FuzzUnescapeKey: any text is a key, in characters that a bucket takes, and
// comes back; what somebody else has written does not panic and is no longer
// than it was.
func FuzzUnescapeKey(f *testing.F) {
	for _, seed := range []string{"", "pods.v1", "a=b", "=", "=4", "=GG", "=2E=2e", "ä/ö*>\x00\xff", "=3D2E"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		key := escapeKey(text)
		if i := strings.IndexFunc(key, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=", r)
		}); i >= 0 {
			t.Fatalf("%q is written %q", text, key)
		}
		if back := unescapeKey(key); back != text {
			t.Fatalf("%q is written %q and read %q", text, key, back)
		}
		foreign := unescapeKey(text)
		if len(foreign) > len(text) || unescapeKey(escapeKey(foreign)) != foreign {
			t.Fatalf("%q is read %q", text, foreign)
		}
	})
}
