package rpc

import (
	"strings"
	"testing"
)

func FuzzParseTokens(f *testing.F) {
	for _, seed := range []string{"", "# comment\n", "0123456789abcdef name", "0123456789abcdef name /a.B/*\nshort x", "0123456789abcdef n [", "\x00\xff \n\n\r"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		grants, err := parseTokens(data)
		if err != nil {
			for field := range strings.FieldsSeq(string(data)) {
				if len(field) >= 16 && !strings.ContainsAny(field, "/[]*?\\") && strings.Contains(err.Error(), field) {
					t.Fatalf("the error shows a token: %v", err)
				}
			}
			return
		}
		if len(grants) == 0 {
			t.Fatal("no token and no error")
		}
		for _, g := range grants {
			if g.id.User == "" {
				t.Fatal("a token without a name")
			}
		}
	})
}
