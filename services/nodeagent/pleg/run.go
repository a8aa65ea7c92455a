package pleg

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// aging is how long removed containers are remembered, at least.
const aging = 5 * time.Minute

// Run lists, listens and publishes until the context ends; nil then. It returns
// when every call to the runtime has ended.
func (p *PLEG) Run(ctx context.Context) error {
	defer p.running.Wait()
	timer := time.NewTimer(0) // the first list is immediate
	defer timer.Stop()
	now := time.Now()
	p.nextList, p.nextBump, p.nextAge = now, now, now.Add(aging)
	for {
		// Stop first, then the lists, then everything else.
		if ctx.Err() != nil {
			return nil
		}
		select {
		case <-timer.C:
			p.tick(ctx)
			timer.Reset(p.cfg.Period) // counted from the end of the last
			continue
		default:
		}
		forced := p.forced
		select {
		case <-ctx.Done():
		case <-timer.C:
			p.tick(ctx)
			timer.Reset(p.cfg.Period)
			continue
		case a := <-p.answers:
			p.take(ctx, a)
		case n := <-p.news:
			p.told(ctx, n)
		case e := <-p.ends:
			p.ended(ctx, e)
		case <-p.requests.ping:
			p.demand(ctx)
		}
		if p.forced && !forced {
			timer.Reset(0) // what was forced while a list ran waits for the period, or lists would leave no time to hear
		}
	}
}

// tick is what is done every period: the list when one is due, and in its place what cannot wait
// for it otherwise.
func (p *PLEG) tick(ctx context.Context) {
	for range len(p.answers) {
		p.take(ctx, <-p.answers)
	}
	now := time.Now()
	p.listen(ctx, now)
	p.abandon(ctx, now)
	if p.forced || !p.nextList.After(now) {
		p.forced = false // what forces one from here on is not served by this one
		p.relist(ctx)
		p.nextList = time.Now().Add(p.cfg.pace().Next(p.health.streamed))
	} else {
		p.between(ctx, now)
	}
	for uid, upTo := range p.undelivered {
		if p.deliver(uid, upTo); p.full {
			break
		}
	}
	if now.After(p.nextAge) {
		p.records.Age()
		p.nextAge = now.Add(aging)
	}
}

// between sees to the reinspection set and to those who wait while lists are slow.
func (p *PLEG) between(ctx context.Context, now time.Time) {
	for _, uid := range p.requests.inspections() {
		p.want(ctx, uid, true)
	}
	for _, uid := range p.cache.waiting() {
		p.want(ctx, uid, false)
	}
	p.census.show(p.metrics)
	if p.health.streamed && !now.Before(p.nextBump) && len(p.news) == 0 && !p.lost.Load() {
		p.cache.declare(now.Add(-lateness))
		p.nextBump = now.Add(p.cfg.Bump)
	}
}

// demand serves one request for a relist of one pod, unless a list that started after it has, or a
// look at the pod that began after it is there or under way.
func (p *PLEG) demand(ctx context.Context) {
	uid, at, ok := p.requests.next()
	if ok && !p.health.listed.After(at) && !p.cache.has(uid, at) && !p.asked(uid, at) {
		p.want(ctx, uid, false)
	}
}

// asked reports whether a inspection about the pod is under way whose answer is newer than at and
// will be of use.
func (p *PLEG) asked(uid types.UID, at time.Time) bool {
	s := p.pods[uid]
	return s != nil && s.open != nil && !s.open.void && !s.open.abandoned && s.open.at.After(at)
}
