package forward

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// Voucher passes on requests whose senders' own credentials cannot be passed on: it says to the API
// server who they are, which believes the credentials that the voucher itself has.
type Voucher struct {
	// Up adds those credentials.
	Up *kube.Upstream
	// FrontProxy names senders in X-Remote headers, as an authenticating proxy does. Otherwise the
	// voucher impersonates them, and what they ask to impersonate themselves must have been judged.
	FrontProxy bool
}

type vouchedKey struct{}

// Vouch is a context of a request that is passed on as one of an identity.
func Vouch(ctx context.Context, id *access.Identity) context.Context {
	return context.WithValue(ctx, vouchedKey{}, id)
}

// Vouched is the identity of [Vouch]; nil where there is none.
func Vouched(ctx context.Context) *access.Identity {
	id, _ := ctx.Value(vouchedKey{}).(*access.Identity)
	return id
}

// name writes who sends a request into its headers, in place of all that its sender has written
// there.
func (v *Voucher) name(h http.Header, id *access.Identity) {
	h.Del("Authorization")
	prefix := "X-Remote-"
	if !v.FrontProxy {
		prefix = "Impersonate-"
		for name := range h {
			if strings.HasPrefix(name, prefix) {
				delete(h, name)
			}
		}
	}
	h.Set(prefix+"User", id.User)
	if id.UID != "" {
		h.Set(prefix+"Uid", id.UID)
	}
	for _, group := range id.Groups {
		if group != access.Authenticated { // the API server says so itself
			h.Add(prefix+"Group", group)
		}
	}
	for key, values := range id.Extra {
		for _, value := range values {
			h.Add(prefix+"Extra-"+url.QueryEscape(key), value)
		}
	}
}
