package authority

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/kube"
)

const accountsResource = "serviceaccounts"

// accounts are the users that a cluster's own tokens name.
var accounts = kube.Resource{Version: "v1", Name: accountsResource, Namespaced: true}.MetadataOnly()

// account takes an event of a service account: what was said of its tokens counts no more.
func (c *cluster) account(raw []byte, gone bool) error {
	var in struct {
		Metadata struct{ Namespace, Name, UID string }
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return fmt.Errorf("%w: a service account: %w", kube.ErrBadAnswer, err)
	}
	c.withdraw(object{accountsResource, in.Metadata.Namespace, in.Metadata.Name, in.Metadata.UID}, gone)
	return nil
}

// accountOf is the service account that an identity is; none for others.
func accountOf(id *access.Identity) (o object, ok bool) {
	name, ok := strings.CutPrefix(id.User, access.ServiceAccountPrefix)
	if !ok {
		return o, false
	}
	o.resource, o.uid = accountsResource, id.UID
	o.namespace, o.name, ok = strings.Cut(name, ":")
	return o, ok
}

// withdraw has tokens that stand and fall with an object reviewed again, or refused where it is
// gone and no other can be it. Decisions stay: they are about users.
func (c *cluster) withdraw(o object, gone bool) {
	if c.tokens.touch(o, gone && o.uid != "", time.Now()) {
		c.ended()
	}
}

// withdrawnFor is how long tokens are refused whose object is gone. The API server keeps what it
// found out about a token for 10 s, and names its bearer until then.
const withdrawnFor = 30 * time.Second

// touch forgets what was said of the tokens of an object, and reports whether there was anything.
// That an object is gone is kept in any case: its tokens may come here later.
// The API server learns of a change by a watch too, and may do so after us, so what it says of
// these tokens is kept for a moment only, for a while.
func (t *reviewedTokens) touch(o object, gone bool, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for other, at := range t.touched {
		if now.Sub(at) > unsettledAfter {
			delete(t.touched, other)
		}
	}
	for other, at := range t.gone {
		if now.Sub(at) > withdrawnFor {
			delete(t.gone, other)
		}
	}
	found := false
	for _, e := range t.tokens {
		select {
		case <-e.done:
			if e.id != nil && slices.Contains(e.of, o) {
				e.until, found = now, true
			}
		default: // it is being reviewed, and may be of the object
			found = true
		}
	}
	if found {
		t.touched[o] = now
	}
	if gone {
		t.gone[o] = now
	}
	return found
}

// withdrawn reports whether an object is gone with which a token stands. t.mu is locked.
func (t *reviewedTokens) withdrawn(of []object, now time.Time) bool {
	return slices.ContainsFunc(of, func(o object) bool {
		at, ok := t.gone[o]
		return ok && now.Sub(at) < withdrawnFor
	})
}

// keep is how long what the cluster says of a token is kept that stands with some objects. t.mu is
// locked.
func (t *reviewedTokens) keep(of []object, now time.Time) time.Duration {
	for _, o := range of {
		if at, ok := t.touched[o]; ok && now.Sub(at) < unsettledAfter {
			return unsettledFor
		}
	}
	return reviewedFor
}
