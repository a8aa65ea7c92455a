package authority

import (
	"context"
	"time"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// Want is one thing that a caller wants to do, with what would be enough of a right for it: the
// widest first, the thing itself last. Errors and the audit log name the last.
type Want []access.Attributes

// Named wants to do something with what is Deltaplane's own, which may be granted by its name or by
// a prefix of it, see [access.NamePatterns].
func Named(verb, resource, name string) Want {
	patterns := access.NamePatterns(name)
	w := make(Want, len(patterns))
	for i, pattern := range patterns {
		w[len(w)-1-i] = access.Virtual(verb, resource, pattern)
	}
	return w
}

// Allow returns nil when the caller of ctx may do all that is wanted. An error is a status that
// names the first that it may not do, or of which nobody can say: PERMISSION_DENIED or UNAVAILABLE
// ACCESS_UNDECIDED. Denials and administrative changes are audited.
func (a *Authority) Allow(ctx context.Context, wants ...Want) error {
	if a == nil {
		return nil
	}
	id := rpc.Caller(ctx)
	for _, w := range wants {
		d, err := a.any(ctx, id, w)
		if err == nil {
			err = a.settle(ctx, id, &w[len(w)-1], d)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Permits is [Authority.Allow] of one thing, where it is known already that the caller may do it:
// false says nothing. It is for what every read asks, and takes no memory.
func (a *Authority) Permits(ctx context.Context, want *access.Attributes) bool {
	if a == nil {
		return true
	}
	id := rpc.Caller(ctx)
	if id == nil || administrative(want) || !a.permits(id, want) {
		return false
	}
	a.metrics.allowed.Inc()
	return true
}

func (a *Authority) permits(id *access.Identity, want *access.Attributes) bool {
	return a.callers.of(id).permitted(a.version.Load(), want, time.Now())
}

// Keep is [Authority.Allow] for a stream: it ends with the error once the caller loses the right.
func (a *Authority) Keep(ctx context.Context, wants ...Want) error {
	if a == nil {
		return nil
	}
	if err := a.Allow(ctx, wants...); err != nil {
		return err
	}
	rpc.Recheck(ctx, func(ctx context.Context) error { return a.Allow(ctx, wants...) })
	return nil
}

// Holds reports whether the caller may do something, without an entry in the audit log. An error is
// that of [Authority.Allow] where nobody can say.
func (a *Authority) Holds(ctx context.Context, w Want) (allowed bool, reason string, err error) {
	if a == nil {
		return true, "callers are not limited", nil
	}
	id := rpc.Caller(ctx)
	d, err := a.any(ctx, id, w)
	switch {
	case err != nil:
		return false, "", err
	case d.err != nil:
		return false, "", undecided(id, &w[len(w)-1], d.err)
	}
	return d.allowed, d.reason, nil
}

// Expect begins to find out what [Authority.Holds] will be asked, one after the other: the widest
// right of each.
func (a *Authority) Expect(ctx context.Context, wants ...Want) {
	id := rpc.Caller(ctx)
	if a == nil || id == nil {
		return
	}
	for _, w := range wants {
		a.start(ctx, id, w[0])
	}
}

// Decide is [Authority.Holds] for somebody who is not the caller of a call.
func (a *Authority) Decide(ctx context.Context, id *access.Identity, want access.Attributes) (allowed bool, reason string, err error) {
	d, err := a.decide(ctx, id, want)
	if err != nil {
		return false, "", err
	}
	if d.err != nil {
		return false, "", undecided(id, &want, d.err)
	}
	return d.allowed, d.reason, nil
}

// Version grows whenever decisions may have become others.
func (a *Authority) Version() uint64 {
	if a == nil {
		return 0
	}
	return a.version.Load()
}

// any is the decision about the first right that is enough, or the last decision. One that failed
// stands for those that denied: it might have been enough.
func (a *Authority) any(ctx context.Context, id *access.Identity, w Want) (last *decision, err error) {
	for _, want := range w {
		d, err := a.decide(ctx, id, want)
		if err != nil {
			return nil, err
		}
		if d.allowed {
			return d, nil
		}
		if last == nil || last.err == nil {
			last = d
		}
	}
	return last, nil
}

// ByName reports whether a right to get single objects is asked for by their names alone.
func (a *Authority) ByName() bool { return a != nil && a.byName }

// settle makes an answer of a decision.
func (a *Authority) settle(ctx context.Context, id *access.Identity, want *access.Attributes, d *decision) error {
	switch {
	case d.allowed:
		a.metrics.allowed.Inc()
		if administrative(want) {
			a.audit.write(ctx, id, want, "allowed", d.reason)
		}
		return nil
	case d.err != nil:
		a.metrics.undecided.Inc()
		a.audit.write(ctx, id, want, "undecided", d.err.Error())
		return undecided(id, want, d.err)
	}
	a.metrics.denied.Inc()
	a.audit.write(ctx, id, want, "denied", d.reason)
	return denied(id, want)
}

// administrative reports whether what is allowed changes how others are served.
func administrative(a *access.Attributes) bool {
	if a.Group != access.Group {
		return false
	}
	switch a.Verb {
	case "create", "update", "delete", "administer":
		return true
	}
	return false
}

func (a *Authority) decide(ctx context.Context, id *access.Identity, want access.Attributes) (*decision, error) {
	if id == nil {
		return &decision{reason: "nobody is authenticated"}, nil
	}
	return a.start(ctx, id, want).wait(ctx)
}

// start begins to decide, unless that was done.
func (a *Authority) start(ctx context.Context, id *access.Identity, want access.Attributes) *decision {
	now := time.Now()
	return a.callers.of(id).decide(ctx, a, want, now)
}

// ask decides: what the policy does not grant, the cluster of the resource may.
func (a *Authority) ask(ctx context.Context, id *access.Identity, want access.Attributes) *decision {
	policy := a.policy.get()
	if reason, ok := policy.Allows(id, &want); ok {
		return &decision{allowed: true, reason: reason, until: time.Now().Add(decidedFor)}
	}
	no := &decision{reason: "no rule of the policy allows it", until: time.Now().Add(decidedFor)}
	c := a.cluster(want.Cluster)
	if c == nil {
		return no
	}
	as := policy.In(c.name, id)
	if as == nil {
		no.reason = "the caller has no identity in cluster " + c.name
		return no
	}
	return c.review(ctx, as, want)
}

// cluster decides about a resource; nil when none does.
func (a *Authority) cluster(name string) *cluster {
	for _, c := range a.clusters {
		if c.name == name || name == "" {
			return c
		}
	}
	return nil
}
