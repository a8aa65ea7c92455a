package authority

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// Audience is the audience of tokens that clusters review for Deltaplane. A token for the API
// server has another one and is refused: a server that receives it could use it against the
// cluster.
const Audience = "deltaplane"

// Cluster is one API server that reviews tokens and decides about its own resources.
type Cluster struct {
	Name string
	Kube *kube.Client
}

// Config says who decides. Its zero value lets every caller do everything.
type Config struct {
	// PolicyFile is a file of RBAC manifests and IdentityMappings, read again when it changes.
	PolicyFile string
	// Clusters review tokens and decide about their collections. The first also decides about what
	// is no cluster's: queues and backoffs.
	Clusters []Cluster
	// ByName asks clusters for each object's name, where otherwise the right to get all of a
	// namespace is asked for first and is enough: for authorizers that refuse single names.
	ByName bool
	// APIServerTokens takes the tokens of the API server itself, for a server that passes requests on
	// to it: they are reviewed without an audience.
	APIServerTokens bool
	// AuditFile receives a line of JSON for each denied call and each administrative change; empty
	// or "-" is standard error.
	AuditFile string
}

// Set reports whether callers are limited at all.
func (c Config) Set() bool { return c.PolicyFile != "" || len(c.Clusters) > 0 }

// Applied is the configuration of a server whose callers are limited so: they must be somebody.
func (c Config) Applied(s rpc.ServerConfig) rpc.ServerConfig {
	if c.Set() && s.Auth.Mode == "" {
		s.Auth.Mode = rpc.AuthIdentities
	}
	return s
}

// Validate reports what does not fit a server's authentication, which is "identities" for those
// that limit callers.
func (c Config) Validate(auth rpc.AuthConfig) error {
	switch {
	case c.Set() && auth.Mode != rpc.AuthIdentities:
		return fmt.Errorf("authority: auth mode %q does not say who calls, which a policy or a cluster that decides must know: want %q", auth.Mode, rpc.AuthIdentities)
	case !c.Set() && auth.Mode == rpc.AuthIdentities:
		return fmt.Errorf("authority: auth mode %q needs a policy file or a cluster that decides", auth.Mode)
	}
	return nil
}

// Authority authenticates callers and decides what they may do. A nil Authority lets every caller
// do everything. It is safe for concurrent use.
type Authority struct {
	auth     rpc.AuthConfig
	byName   bool
	tokens   *rpc.Tokens // nil without a file
	policy   *policyFile
	clusters []*cluster
	callers  callers
	audit    *audit
	metrics  *metrics
	log      *slog.Logger

	version atomic.Uint64 // counts what may change a decision
	changed chan struct{} // cap 1: something has
	ended   chan struct{} // cap 1: tokens may have
}

// New reads the files of a configuration. It is nil for a zero one. No cluster is called yet.
func New(cfg Config, auth rpc.AuthConfig, log *slog.Logger, reg prometheus.Registerer) (*Authority, error) {
	if err := cfg.Validate(auth); err != nil || !cfg.Set() {
		return nil, err
	}
	a := &Authority{auth: auth, byName: cfg.ByName, log: log, changed: make(chan struct{}, 1), ended: make(chan struct{}, 1), callers: callers{byKey: map[string]*caller{}}}
	var faults []error
	var err error
	if auth.TokenFile != "" {
		if a.tokens, err = rpc.NewTokens(auth, log); err != nil {
			faults = append(faults, err)
		}
	}
	if a.policy, err = openPolicy(cfg.PolicyFile, log, a.change); err != nil {
		faults = append(faults, err)
	}
	seen := map[string]bool{}
	for _, c := range cfg.Clusters {
		switch {
		case c.Name == "" || c.Kube == nil:
			faults = append(faults, errors.New("authority: a cluster has no name, or nothing to reach it by"))
		case seen[c.Name]:
			faults = append(faults, fmt.Errorf("authority: cluster %q is named twice", c.Name))
		default:
			seen[c.Name] = true
			one := newCluster(c.Name, c.Kube, log, a.change, a.end)
			if cfg.APIServerTokens {
				one.audience = ""
			}
			a.clusters = append(a.clusters, one)
		}
	}
	if a.audit, err = openAudit(cfg.AuditFile); err != nil {
		faults = append(faults, err)
	}
	if a.metrics, err = newMetrics(reg, a); err != nil {
		faults = append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	for _, c := range a.clusters {
		c.metrics = a.metrics
	}
	return a, nil
}

// Authorizer is the authority as what a server asks who calls; nil for a nil one.
func (a *Authority) Authorizer() rpc.Authorizer {
	if a == nil {
		return nil
	}
	return a
}

// change notes that decisions may have become others.
func (a *Authority) change() {
	a.version.Add(1)
	note(a.changed)
}

// end notes that tokens may count no more.
func (a *Authority) end() { note(a.ended) }

func note(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Check implements [rpc.Revoker].
func (a *Authority) Check(ctx context.Context) error {
	faults := []error{a.policy.check()}
	if a.tokens != nil {
		faults = append(faults, a.tokens.Check(ctx))
	}
	for _, c := range a.clusters {
		faults = append(faults, c.check())
	}
	return errors.Join(faults...)
}

// again is when open streams are looked at once more after a change, counted from it. The API
// server learns of a change of its roles by a watch too, and may do so after us.
var again = []time.Duration{150 * time.Millisecond, 400 * time.Millisecond, 900 * time.Millisecond, 2 * time.Second, 5 * time.Second, 10 * time.Second}

// forced are the first of these, which ask the clusters again whatever was just decided.
const forced = 3

// Watch implements [rpc.Revoker]. It follows the roles of the clusters, the policy and the tokens.
func (a *Authority) Watch(ctx context.Context, revise func()) {
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { a.policy.follow(ctx) })
	for _, c := range a.clusters {
		parts.Go(func() { c.followRoles(ctx) })
	}
	if a.tokens != nil {
		parts.Go(func() { a.tokens.Watch(ctx, a.change) })
	}
	routine := time.NewTicker(reviewedFor) // tokens end, and decisions do
	defer routine.Stop()
	changes, ends := newLooks(), newLooks()
	defer changes.next.Stop()
	defer ends.next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-routine.C:
			a.callers.expire(time.Now())
		case <-a.changed:
			changes.begin()
		case <-a.ended:
			ends.begin()
		case <-changes.next.C:
			if changes.step() <= forced {
				a.version.Add(1)
			}
		case <-ends.next.C:
			ends.step()
		}
		revise()
	}
}

// looks are when open streams are looked at once more after something, see [again].
type looks struct {
	since time.Time
	taken int
	next  *time.Timer
}

func newLooks() *looks {
	l := &looks{next: time.NewTimer(time.Hour)}
	l.next.Stop()
	return l
}

// begin counts from now.
func (l *looks) begin() {
	l.since, l.taken = time.Now(), 0
	l.next.Reset(again[0])
}

// step takes a look, and says which it is, from 1 on.
func (l *looks) step() int {
	if l.taken++; l.taken < len(again) {
		l.next.Reset(time.Until(l.since.Add(again[l.taken])))
	}
	return l.taken
}
