package request

import (
	"encoding/base64"
	"encoding/json"
	"path"
	"strings"
)

// token is the continue token of API servers: with it any of them, and any gateway, goes on.
type token struct {
	APIVersion      string `json:"v"`
	ResourceVersion uint64 `json:"rv"`
	StartKey        string `json:"start"`
}

const tokenVersion = "meta.k8s.io/v1"

// Token is the continue token behind a key of a list at a version. The key is without the list's
// namespace, where it has one.
func Token(key string, version uint64) string {
	b, _ := json.Marshal(token{tokenVersion, version, key + "\x00"}) //nolint:errchkjson // texts and a number
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseToken reads a continue token whose key is the last one of the page before. Tokens without a
// version, and such as no server makes, are for the API server to judge.
func parseToken(text string) (after string, version uint64, ok bool) {
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return "", 0, false
	}
	var t token
	if err := json.Unmarshal(data, &t); err != nil || t.APIVersion != tokenVersion || t.ResourceVersion == 0 || t.ResourceVersion > 1<<62 {
		return "", 0, false
	}
	// Lists that are answered from an API server's cache have a slash in front.
	after, ok = strings.CutSuffix(strings.TrimPrefix(t.StartKey, "/"), "\x00")
	if !ok || after == "" || after[0] == '/' || path.Clean("/"+after) != "/"+after || strings.Contains(after, "\x00") {
		return "", 0, false
	}
	return after, t.ResourceVersion, true
}
