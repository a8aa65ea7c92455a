package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// behindLimit is the backlog at the end of a turn beyond which its load was more
// than driver and server could do: latency then tells how long the turn was.
const behindLimit = 20 * time.Millisecond

// read is a read of the index and the echo of what it answers.
type read struct {
	name        string
	index, echo caller
	ceiling     float64 // calls a second, that both of them reach
}

// indexLatency measures how long reads take from when they were due, at loads
// below the ceiling of driver and server together, beside echoes of the same
// bytes at the same load.
func indexLatency(ctx context.Context, b *bench) (err error) {
	r, err := newReadRig(ctx, b, "latency")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	q := r.questions
	reads := []*read{
		{name: "ByIndex, 30 hits, keys only", index: caller{r.raw.conns, indexv1.IndexService_ByIndex_FullMethodName, q.keys}, echo: caller{r.echoes, echoByIndex, q.keys}},
		{name: "ByIndex, 30 x 5 KB", index: caller{r.raw.conns, indexv1.IndexService_ByIndex_FullMethodName, q.objects}, echo: caller{r.echoes, echoObjects, q.objects}},
		{name: "Get, 5 KB", index: caller{r.raw.conns, indexv1.IndexService_Get_FullMethodName, q.gets}, echo: caller{r.echoes, echoGet, q.gets}},
	}
	if err := ceilings(ctx, b, r.raw.child, reads); err != nil {
		return err
	}
	loads := []float64{.5, .7, .9}
	var sides []side
	for _, x := range reads {
		for _, load := range loads {
			sides = append(sides, x.sides(load, func(ctx context.Context, d time.Duration, c caller) (map[string]float64, error) {
				return pacedTurn(ctx, r.raw.child, d, load*x.ceiling, c)
			})...)
		}
	}
	p := b.plan("latency", 2, 7, 100*time.Millisecond, time.Second)
	p.rotate = true
	t, err := interleave(ctx, b, p, sides...)
	if err != nil {
		return err
	}
	for _, x := range reads {
		for _, load := range loads {
			x.add(b, t, load)
		}
	}
	return r.verify(ctx, r.raw)
}

// names are those of the index's side at a load and of the echo's.
func (x *read) names(load float64) (own, echo string) {
	own = fmt.Sprintf("%s at %.1f", x.name, load)
	return own, own + ", echo"
}

// sides are both of them.
func (x *read) sides(load float64, run func(context.Context, time.Duration, caller) (map[string]float64, error)) []side {
	own, echo := x.names(load)
	return []side{
		{own, func(ctx context.Context, d time.Duration) (map[string]float64, error) { return run(ctx, d, x.index) }},
		{echo, func(ctx context.Context, d time.Duration) (map[string]float64, error) { return run(ctx, d, x.echo) }},
	}
}

// ceilings finds what each read and its echo reach in a closed loop.
func ceilings(ctx context.Context, b *bench, server *child, reads []*read) error {
	var sides []side
	for _, x := range reads {
		sides = append(sides, x.sides(1, func(ctx context.Context, d time.Duration, c caller) (map[string]float64, error) {
			return cpuPerCall(ctx, server, d, readsInFlight, c)
		})...)
	}
	t, err := interleave(ctx, b, b.plan("ceilings", 2, 5, 100*time.Millisecond, 500*time.Millisecond), sides...)
	if err != nil {
		return err
	}
	for _, x := range reads {
		own, echo := x.names(1)
		f := compare(x.name+", closed loop, raw tier: the ceiling", "calls/s", t.of(own, "rate"), "echo of the same bytes", t.of(echo, "rate"), nil)
		x.ceiling = min(f.Ours.Median, f.Beside.Median)
		b.add(f.with("core busy", "", t.of(own, "busy")).with("beside", "", t.of(echo, "busy")))
	}
	b.note("latency: a ceiling is the median of the closed loop (%d in flight on one connection), of the read or of its echo, whichever is lower; driver and server together reach it, "+
		"the server on one core, the driver on what is left of %d", readsInFlight, b.report.Machine.Cores)
	b.note("latency: open loop, calls at fixed times on one connection, counted from when they were due, those begun late included; " +
		"fell behind: in most rounds what was unanswered at the end was more than 20 ms of the load")
	return nil
}

// pacedTurn is a turn of an open loop.
func pacedTurn(ctx context.Context, server *child, d time.Duration, rate float64, c caller) (map[string]float64, error) {
	before, err := server.usage()
	if err != nil {
		return nil, err
	}
	p, err := openLoop(ctx, d, rate, func(ctx context.Context, n int) error { return c.call(ctx, n, n) })
	if err != nil {
		return nil, err
	}
	after, err := server.usage()
	behind := 0.
	if p.backlog() > behindLimit {
		behind = 1
	}
	return map[string]float64{
		"p50": ms(p.latency.quantile(.5)), "p99": ms(p.latency.quantile(.99)), "p999": ms(p.latency.quantile(.999)),
		"began": ms(p.began.quantile(.99)), "offered": rate, "answered": float64(p.meanwhile) / d.Seconds(), "behind": behind,
		"busy": (after.CPU - before.CPU).Seconds() / d.Seconds(),
	}, err
}

// add adds the rows of a read at a load.
func (x *read) add(b *bench, t table, load float64) {
	own, echo := x.names(load)
	name := fmt.Sprintf("%s, open loop, %.0f %% of the ceiling, raw tier", x.name, 100*load)
	const besideName = "echo of the same bytes"
	if fellBehind(t.of(own, "behind")) || fellBehind(t.of(echo, "behind")) {
		f := compare(name+": fell behind, answered meanwhile", "calls/s", t.of(own, "answered"), besideName, t.of(echo, "answered"), nil)
		b.add(f.with("offered", "calls/s", t.of(own, "offered")))
		return
	}
	f := compare(name+", p50", "ms", t.of(own, "p50"), besideName, t.of(echo, "p50"), nil)
	f = f.with("offered", "calls/s", t.of(own, "offered"))
	f = f.with("core busy", "", t.of(own, "busy")).with("beside", "", t.of(echo, "busy"))
	if ours, theirs := total(t.of(own, "behind")), total(t.of(echo, "behind")); ours+theirs > 0 {
		f = f.with("rounds that fell behind", "", []float64{ours}).with("beside", "", []float64{theirs})
	}
	b.add(f)
	f = compare(name+", p99", "ms", t.of(own, "p99"), besideName, t.of(echo, "p99"), nil)
	f = f.with("p99.9", "ms", t.of(own, "p999")).with("beside", "ms", t.of(echo, "p999"))
	b.add(f.with("begun late", "ms", t.of(own, "began")).with("beside", "ms", t.of(echo, "began")))
}

// fellBehind tells whether most rounds did.
func fellBehind(rounds []float64) bool { return spreadOf(rounds).Median > .5 }

// total is the sum of a series.
func total(rounds []float64) (sum float64) {
	for _, v := range rounds {
		sum += v
	}
	return sum
}
