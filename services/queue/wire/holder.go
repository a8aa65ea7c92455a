package wire

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// Sessions and leases belong to the authenticated caller that opened them. The id of a session
// in this package, which is also the holder that the store keeps with a lease, begins with a
// tag of its caller: two callers that choose the same id have two sessions, and every server
// can tell whose a lease is. Without authentication there is no tag, and all callers are one.

const (
	tagBytes = 12                   // of the hash of a caller's name
	tagLen   = 1 + tagBytes*8/6 + 1 // between two marks
	tagMark  = "~"
)

// CallerTag is the caller's.
func CallerTag(ctx context.Context) string {
	who := rpc.Identity(ctx)
	if who == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(who))
	return tagMark + base64.RawURLEncoding.EncodeToString(sum[:tagBytes]) + tagMark
}

// SessionID is the session id of a caller as this package and the store know it.
func SessionID(ctx context.Context, id string) string {
	if id == "" {
		return ""
	}
	return CallerTag(ctx) + id
}

// SplitSession is the tag of a session, empty for none, and the id its caller gave it.
func SplitSession(session string) (tag, id string) {
	if len(session) < tagLen || !strings.HasPrefix(session, tagMark) || session[tagLen-1:tagLen] != tagMark {
		return "", session
	}
	return session[:tagLen], session[tagLen:]
}
