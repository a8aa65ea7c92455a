package authority

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

const (
	// reviewedFor is how long what a cluster said of a token is kept.
	reviewedFor = 10 * time.Second
	maxTokens   = 20_000
	maxHosts    = 10_000
	// Tokens of one host that no cluster knows: so many at once, and so many a second after that.
	unknownBurst, unknownRate = 20, 5
)

// reviewedTokens are what a cluster said of tokens, by their hash. Tokens that were good a moment
// ago have places of their own among the reviews, so that a storm of others does not keep them
// waiting.
type reviewedTokens struct {
	known, unknown chan struct{} // one place for each review under way

	mu     sync.Mutex // guards the rest
	tokens map[[sha256.Size]byte]*reviewedToken
	hosts  rpc.Limiters[string] // of tokens that nobody knows
	// touched are objects of tokens here that have changed, and when; gone are those that are no more.
	touched, gone map[object]time.Time
}

type reviewedToken struct {
	done  chan struct{}
	id    *access.Identity
	err   error
	until time.Time
	good  bool     // the review before this one, or this one, named somebody
	of    []object // that it stands and falls with
}

func newReviewedTokens() reviewedTokens {
	return reviewedTokens{
		known: make(chan struct{}, maxReviews), unknown: make(chan struct{}, maxReviews/4),
		tokens: map[[sha256.Size]byte]*reviewedToken{}, hosts: rpc.Limiters[string]{Burst: unknownBurst, Rate: unknownRate, Most: maxHosts}, touched: map[object]time.Time{}, gone: map[object]time.Time{},
	}
}

// errTooManyTokens refuses a token unseen.
var errTooManyTokens = errors.New("too many unknown tokens come from this host")

// token says whose a token is; nil when the cluster does not know it. Callers with one
// token wait for one review.
func (c *cluster) token(ctx context.Context, token, host string) (*access.Identity, error) {
	key := sha256.Sum256([]byte(token))
	now := time.Now()
	t := &c.tokens
	t.mu.Lock()
	e := t.tokens[key]
	if e == nil || e.over(now) {
		good := e != nil && e.good
		if !good && !t.hosts.May(host, now) {
			t.mu.Unlock()
			return nil, errTooManyTokens
		}
		if len(t.tokens) >= maxTokens {
			t.shrink(now)
		}
		e = &reviewedToken{done: make(chan struct{}), good: good}
		t.tokens[key] = e
		go c.reviewToken(context.WithoutCancel(ctx), e, token, host)
	}
	t.mu.Unlock()
	select {
	case <-e.done:
		return e.id, e.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// over reports whether the token has to be reviewed again. The mu of its table is locked.
func (e *reviewedToken) over(now time.Time) bool {
	select {
	case <-e.done:
		return !now.Before(e.until)
	default:
		return false
	}
}

func (c *cluster) reviewToken(ctx context.Context, e *reviewedToken, token, host string) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	asked := time.Now()
	id, err := c.askToken(ctx, e.good, token)
	var of []object
	if id != nil {
		id.Cluster = c.name
		of = c.objectsOf(token, id, asked)
	}
	c.tokens.mu.Lock()
	defer c.tokens.mu.Unlock()
	if c.tokens.withdrawn(of, time.Now()) {
		id = nil
	}
	e.id, e.err, e.of, e.until = id, err, of, asked.Add(reviewedFor)
	switch {
	case err != nil:
		e.until = time.Now().Add(failedFor)
	case id == nil:
		e.good = false
		c.tokens.hosts.Count(host, asked)
	default:
		e.good, e.until = true, asked.Add(c.tokens.keep(of, asked))
	}
	close(e.done)
}

func (c *cluster) askToken(ctx context.Context, known bool, token string) (*access.Identity, error) {
	places := c.tokens.unknown
	if known {
		places = c.tokens.known
	}
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	case <-ctx.Done():
		return nil, errors.New("the cluster does not answer token reviews in time")
	}
	id, _, err := c.reviews.ReviewToken(ctx, token, c.audience)
	c.metrics.reviewed("token", err, id != nil)
	if err != nil {
		return nil, fmt.Errorf("token review by cluster %s: %w", c.name, err)
	}
	return id, nil
}

// shrink makes room among the tokens: those that are over go, then those that nobody knows. t.mu is
// locked.
func (t *reviewedTokens) shrink(now time.Time) {
	for key, e := range t.tokens {
		if e.over(now) {
			delete(t.tokens, key)
		}
	}
	for key, e := range t.tokens {
		if len(t.tokens) < maxTokens {
			return
		}
		if !e.good {
			delete(t.tokens, key)
		}
	}
}

// unsuitable says why a token is none that a cluster can have made for us, before any is asked;
// empty when it may be. It proves nothing: only a review does.
func unsuitable(token string, now time.Time) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "the bearer token is not known"
	}
	var claims struct {
		Audience audiences `json:"aud"`
		Expires  float64   `json:"exp"`
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(payload, &claims)
	}
	switch {
	case err != nil:
		return "the bearer token is not known"
	case !slices.Contains(claims.Audience, Audience):
		return fmt.Sprintf("the token is for the audience %.200q, want %q", []string(claims.Audience), Audience)
	case claims.Expires > 0 && claims.Expires < float64(now.Unix()):
		return "the token has expired"
	}
	return ""
}

// audiences are one or several.
type audiences []string

// UnmarshalJSON implements json.Unmarshaler.
func (a *audiences) UnmarshalJSON(data []byte) error {
	var one string
	if err := json.Unmarshal(data, &one); err == nil {
		*a = audiences{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(a))
}
