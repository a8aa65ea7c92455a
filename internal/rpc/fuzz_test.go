package rpc

import (
	"maps"
	"reflect"
	"strings"
	"testing"
)

func FuzzParseTokens(f *testing.F) {
	for _, seed := range []string{"", "# comment\n", "0123456789abcdef name", "0123456789abcdef name /a.B/*\nshort x", "0123456789abcdef n [", "sha256:" + strings.Repeat("0a", 32) + " name groups=a,b", "SHA256:0a name", "\x00\xff \n\n\r"} {
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
		hashed, err := parseTokens(hashTokens(t, data))
		if err != nil || !maps.EqualFunc(hashed, grants, func(a, b grant) bool { return reflect.DeepEqual(a, b) }) {
			t.Fatalf("with the hashes in place of the tokens: %d grants, %v; want the same %d", len(hashed), err, len(grants))
		}
	})
}

// hashTokens puts the hashes in place of the tokens of a token file.
func hashTokens(t *testing.T, data []byte) []byte {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) > 0 && !strings.HasPrefix(fields[0], "#") && !strings.EqualFold(fields[0][:len("sha256:")], "sha256:") {
			hash, err := HashedToken(fields[0])
			if err != nil {
				t.Fatal(err)
			}
			fields[0] = hash
		}
		out.WriteString(strings.Join(fields, " ") + "\n")
	}
	return []byte(out.String())
}
