package index

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// behindLimit is the backlog at the end of a turn beyond which its load was more
// than driver and server could do: latency then tells how long the turn was.
const behindLimit = 20 * time.Millisecond

// read is a read of the index and the echo of what it answers.
type read struct {
	name        string
	index, echo load.Caller
	ceiling     float64 // calls a second, that both of them reach
}

// indexLatency measures how long reads take from when they were due, at loads
// below the ceiling of driver and server together, beside echoes of the same
// bytes at the same load.
func indexLatency(ctx context.Context, b *harness.Bench) (err error) {
	r, err := newReadRig(ctx, b, "latency")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	q := r.questions
	reads := []*read{
		{name: "ByIndex, 30 hits, keys only", index: load.Caller{Pool: r.raw.Conns, Method: indexv1.IndexService_ByIndex_FullMethodName, Requests: q.keys}, echo: load.Caller{Pool: r.echoes, Method: load.EchoByIndex, Requests: q.keys}},
		{name: "ByIndex, 30 x 5 KB", index: load.Caller{Pool: r.raw.Conns, Method: indexv1.IndexService_ByIndex_FullMethodName, Requests: q.objects}, echo: load.Caller{Pool: r.echoes, Method: load.EchoObjects, Requests: q.objects}},
		{name: "Get, 5 KB", index: load.Caller{Pool: r.raw.Conns, Method: indexv1.IndexService_Get_FullMethodName, Requests: q.gets}, echo: load.Caller{Pool: r.echoes, Method: load.EchoGet, Requests: q.gets}},
	}
	if err := ceilings(ctx, b, r.raw.Child, reads); err != nil {
		return err
	}
	loads := []float64{.5, .7, .9}
	var sides []harness.Side
	for _, x := range reads {
		for _, fraction := range loads {
			sides = append(sides, x.sides(fraction, func(ctx context.Context, d time.Duration, c load.Caller) (map[string]float64, error) {
				return pacedTurn(ctx, r.raw.Child, d, fraction*x.ceiling, c)
			})...)
		}
	}
	p := b.Plan("latency", 2, 7, 100*time.Millisecond, time.Second)
	p.Rotate = true
	t, err := harness.Interleave(ctx, b, p, sides...)
	if err != nil {
		return err
	}
	for _, x := range reads {
		for _, fraction := range loads {
			x.add(b, t, fraction)
		}
	}
	return r.verify(ctx, r.raw)
}

// names are those of the index's side at a load and of the echo's.
func (x *read) names(fraction float64) (own, echo string) {
	own = fmt.Sprintf("%s at %.1f", x.name, fraction)
	return own, own + ", echo"
}

// sides are both of them.
func (x *read) sides(fraction float64, run func(context.Context, time.Duration, load.Caller) (map[string]float64, error)) []harness.Side {
	own, echo := x.names(fraction)
	return []harness.Side{
		{Name: own, Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) { return run(ctx, d, x.index) }},
		{Name: echo, Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) { return run(ctx, d, x.echo) }},
	}
}

// ceilings finds what each read and its echo reach in a closed loop.
func ceilings(ctx context.Context, b *harness.Bench, server *harness.Child, reads []*read) error {
	var sides []harness.Side
	for _, x := range reads {
		sides = append(sides, x.sides(1, func(ctx context.Context, d time.Duration, c load.Caller) (map[string]float64, error) {
			return load.CPUPerCall(ctx, server, d, load.ReadsInFlight, c)
		})...)
	}
	t, err := harness.Interleave(ctx, b, b.Plan("ceilings", 2, 5, 100*time.Millisecond, 500*time.Millisecond), sides...)
	if err != nil {
		return err
	}
	for _, x := range reads {
		own, echo := x.names(1)
		f := harness.Compare(x.name+", closed loop, raw tier: the ceiling", "calls/s", t.Of(own, "rate"), "echo of the same bytes", t.Of(echo, "rate"), nil)
		x.ceiling = min(f.Ours.Median, f.Beside.Median)
		b.Add(f.With("core busy", "", t.Of(own, "busy")).With("beside", "", t.Of(echo, "busy")))
	}
	b.Note("latency: a ceiling is the median of the closed loop (%d in flight on one connection), of the read or of its echo, whichever is lower; driver and server together reach it, "+
		"the server on one core, the driver on what is left of %d", load.ReadsInFlight, b.Report.Machine.Cores)
	b.Note("latency: open loop, calls at fixed times on one connection, counted from when they were due, those begun late included; " +
		"fell behind: in most rounds what was unanswered at the end was more than 20 ms of the load")
	return nil
}

// pacedTurn is a turn of an open loop.
func pacedTurn(ctx context.Context, server *harness.Child, d time.Duration, rate float64, c load.Caller) (map[string]float64, error) {
	before, err := server.Usage()
	if err != nil {
		return nil, err
	}
	p, err := load.OpenLoop(ctx, d, rate, func(ctx context.Context, n int) error { return c.Call(ctx, n, n) })
	if err != nil {
		return nil, err
	}
	after, err := server.Usage()
	behind := 0.
	if p.Backlog() > behindLimit {
		behind = 1
	}
	return map[string]float64{
		"p50": harness.Ms(p.Latency.Quantile(.5)), "p99": harness.Ms(p.Latency.Quantile(.99)), "p999": harness.Ms(p.Latency.Quantile(.999)),
		"began": harness.Ms(p.Began.Quantile(.99)), "offered": rate, "answered": float64(p.Meanwhile) / d.Seconds(), "behind": behind,
		"busy": (after.CPU - before.CPU).Seconds() / d.Seconds(),
	}, err
}

// add adds the rows of a read at a load.
func (x *read) add(b *harness.Bench, t harness.Table, fraction float64) {
	own, echo := x.names(fraction)
	name := fmt.Sprintf("%s, open loop, %.0f %% of the ceiling, raw tier", x.name, 100*fraction)
	const besideName = "echo of the same bytes"
	if fellBehind(t.Of(own, "behind")) || fellBehind(t.Of(echo, "behind")) {
		f := harness.Compare(name+": fell behind, answered meanwhile", "calls/s", t.Of(own, "answered"), besideName, t.Of(echo, "answered"), nil)
		b.Add(f.With("offered", "calls/s", t.Of(own, "offered")))
		return
	}
	f := harness.Compare(name+", p50", "ms", t.Of(own, "p50"), besideName, t.Of(echo, "p50"), nil)
	f = f.With("offered", "calls/s", t.Of(own, "offered"))
	f = f.With("core busy", "", t.Of(own, "busy")).With("beside", "", t.Of(echo, "busy"))
	if ours, theirs := total(t.Of(own, "behind")), total(t.Of(echo, "behind")); ours+theirs > 0 {
		f = f.With("rounds that fell behind", "", []float64{ours}).With("beside", "", []float64{theirs})
	}
	b.Add(f)
	f = harness.Compare(name+", p99", "ms", t.Of(own, "p99"), besideName, t.Of(echo, "p99"), nil)
	f = f.With("p99.9", "ms", t.Of(own, "p999")).With("beside", "ms", t.Of(echo, "p999"))
	b.Add(f.With("begun late", "ms", t.Of(own, "began")).With("beside", "ms", t.Of(echo, "began")))
}

// fellBehind tells whether most rounds did.
func fellBehind(rounds []float64) bool { return harness.SpreadOf(rounds).Median > .5 }

// total is the sum of a series.
func total(rounds []float64) (sum float64) {
	for _, v := range rounds {
		sum += v
	}
	return sum
}
