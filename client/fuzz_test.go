package client

import (
	"testing"
	"unicode/utf8"
)

func FuzzRecordOf(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `null`, `[]`, `{"metadata":null}`, `{"metadata":{"ownerReferences":[{"kind":"Job","name":"a","uid":"u","controller":true}],"labels":{"a":"b"}}}`,
		`{"metadata":{"ownerReferences":[{"kind":"Job","name":""}]}}`, `{"metadata":{"labels":{"a":1}}}`,
	} {
		f.Add("ns/p", []byte(seed))
	}
	f.Fuzz(func(t *testing.T, key string, payload []byte) {
		r, err := recordOf("dev/pods.v1", Object{Key: key, Payload: payload})
		if err != nil {
			return
		}
		for _, m := range []Mapper{Self(), OwnersOf("Job"), Hint("node")} {
			if _, all := m(r); all {
				t.Fatal("an object of the index asks for every key")
			}
		}
	})
}

func FuzzClip(f *testing.F) {
	f.Add("plain", 3)
	f.Add("äöü€𝄞", 5)
	f.Add("\xff\xfe broken \xc3", 4)
	f.Fuzz(func(t *testing.T, s string, n int) {
		n = 16 + n&1023
		got := clip(s, n)
		if !utf8.ValidString(got) || len(got) > n {
			t.Fatalf("clip(%q, %d) = %q, %d bytes", s, n, got, len(got))
		}
	})
}
