package authority

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*clientConnReadLoop).run")) // idle, of a real API server
}

// api stands for an API server: it knows tokens and who may do what.
type api struct {
	mu      sync.Mutex
	tokens  map[string]*access.Identity
	allowed map[string]bool // by "user verb resource namespace name"
	err     error
	slow    chan struct{} // closed when reviews are answered; nil answers at once
	reviews int           // of access
	tokenRv int           // reviews of tokens
	asked   []access.Attributes
}

func right(user string, a access.Attributes) string {
	return fmt.Sprintf("%s %s %s %s %s %s", user, a.Verb, a.Resource, a.Namespace, a.Name, a.FieldSelector)
}

func (f *api) ReviewToken(ctx context.Context, token, audience string) (*access.Identity, string, error) {
	if err := f.wait(ctx); err != nil {
		return nil, "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tokenRv++
	if f.err != nil || audience != Audience {
		return nil, "", f.err
	}
	if id := f.tokens[token]; id != nil {
		found := *id
		return &found, "", nil
	}
	return nil, "not known", nil
}

func (f *api) ReviewAccess(ctx context.Context, id *access.Identity, a access.Attributes) (bool, string, error) {
	if err := f.wait(ctx); err != nil {
		return false, "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reviews++
	f.asked = append(f.asked, a)
	return f.allowed[right(id.User, a)], "said the cluster", f.err
}

func (f *api) wait(ctx context.Context) error {
	f.mu.Lock()
	slow := f.slow
	f.mu.Unlock()
	if slow == nil {
		return nil
	}
	select {
	case <-slow:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *api) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *api) count() (access, tokens int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reviews, f.tokenRv
}

// quiet are roles that nobody may watch, or that never change.
type quiet struct{ err error }

func (q quiet) List(context.Context, kube.Resource, kube.ListOptions) (kube.Page, error) {
	return kube.Page{RV: "1"}, q.err
}

func (q quiet) Watch(ctx context.Context, _ kube.Resource, _ kube.WatchOptions) (*kube.Watch, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// guarded is an authority with one cluster, "dev", whose roles are followed, and its audit log.
func guarded(t *testing.T, f *api, policy string) (*Authority, *bytes.Buffer) {
	t.Helper()
	a := &Authority{
		auth: rpc.AuthConfig{Mode: rpc.AuthIdentities}, log: slog.New(slog.DiscardHandler), changed: make(chan struct{}, 1), ended: make(chan struct{}, 1),
		callers: callers{byKey: map[string]*caller{}}, policy: &policyFile{policy: &access.Policy{}},
	}
	if policy != "" {
		p, err := ParsePolicy([]byte(policy))
		if err != nil {
			t.Fatal(err)
		}
		a.policy.policy = p
	}
	var err error
	if a.metrics, err = newMetrics(prometheus.NewRegistry(), a); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a.audit = newAudit(&out)
	if f != nil {
		c := newCluster("dev", nil, a.log, a.change, a.end)
		c.reviews, c.roles, c.metrics = f, quiet{}, a.metrics
		for _, r := range roleResources {
			c.followed[r.Name] = true
		}
		c.altered = time.Now().Add(-time.Hour)
		a.clusters = append(a.clusters, c)
	}
	return a, &out
}

var errAway = errors.New("the API server is away")

// with is the context of a call from a host with a bearer token.
func with(ctx context.Context, host, token string) context.Context {
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(host), Port: 1}})
	return metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+token))
}

// jwt is a token that looks as if a cluster had made it.
func jwt(name, audience string, expires time.Time) string {
	payload := fmt.Sprintf(`{"sub":%q,"aud":[%q],"exp":%d}`, name, audience, expires.Unix())
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".sig-" + name
}
