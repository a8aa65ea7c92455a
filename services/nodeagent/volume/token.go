package volume

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// maxTokenAge is when a token is replaced however long it would be good.
const maxTokenAge = 24 * time.Hour

type tokenKey struct {
	account, audience string
	seconds           int64
}

// token is one that was given. Its times are by this clock, from when it was asked
// for: the API server's may differ.
type token struct {
	value         string
	renew, expiry time.Time
}

// token adds a service account's token, a new one from 80 % of its life on, or after a
// day. One that cannot be renewed serves until it expires.
func (f *filler) token(ctx context.Context, src *corev1.ServiceAccountTokenProjection, mode os.FileMode) error {
	key := tokenKey{cmp.Or(f.pod.Spec.ServiceAccountName, "default"), src.Audience, 3600}
	if src.ExpirationSeconds != nil {
		key.seconds = *src.ExpirationSeconds
	}
	m, known := f.m, f.known.tokens
	t, now := known[key], m.cfg.Now()
	if t == nil || !now.Before(t.renew) {
		value, life, err := m.objects.Token(ctx, f.pod, key.account, key.audience, key.seconds)
		switch {
		case err == nil:
			t = &token{value: value, renew: now.Add(min(life/10*8, maxTokenAge)), expiry: now.Add(life)}
			known[key] = t
		case t == nil || !now.Before(t.expiry):
			return fmt.Errorf("token of service account %q: %w", key.account, err)
		default:
			m.log.Debug("service account token not renewed", slog.String("namespace", f.pod.Namespace), slog.String("pod", f.pod.Name), slog.Any("error", err))
		}
	}
	return f.add(src.Path, []byte(t.value), mode)
}
