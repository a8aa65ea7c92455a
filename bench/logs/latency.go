package logs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/system"
)

// logLatency measures the time from an event at the API server until a consumer
// of the log has it, beside a client-go informer's handler on an API server that
// plays the same. Each of them is a process of its own; the clock is the machine's.
func logLatency(ctx context.Context, b *harness.Bench) (err error) {
	cfg := scriptConfig{Pods: harness.Pick(b, 3000, 9990), Templates: harness.Pick(b, 500, 600)}
	m, err := startMirror(ctx, b, "latency", cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	leader, err := m.reflector(ctx, "bench", m.nats)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leader.Close()) }()
	other, err := startScript(ctx, b, "latency-informer", cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.Stop()) }()
	peer, err := startPeers(ctx, b, jsonConfig{URL: other.URL, Count: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.Stop()) }()
	if err := errors.Join(m.settle(), peer.Call("load", nil, nil), peer.verify(ctx, other)); err != nil {
		return err
	}
	events := 0
	turn := func(name string, s *scripted, at *harness.Child, parts map[string]*harness.Child) harness.Side {
		return harness.Side{Name: name, Run: func(_ context.Context, d time.Duration) (got map[string]float64, err error) {
			events += int(d.Seconds() * system.DeltasPerSecond)
			return eventTurn(b, s, at, parts, d)
		}}
	}
	t, err := harness.Interleave(ctx, b, b.Plan("latency", 2, 7, 1500*time.Millisecond, 8*time.Second),
		turn("log", m.script, m.reader.Child, map[string]*harness.Child{"reflector": leader.Child, "nats": m.log, "reader": m.reader.Child}),
		turn("informer", other, peer.Child, map[string]*harness.Child{"informer": peer.Child}))
	if err != nil {
		return err
	}
	b.Note("latency: %d/s open loop, %d bytes each in JSON, every tenth pod deleted and recreated in turn, %d events in all; log: a process of its own, 1 replica, file storage, default sync", system.DeltasPerSecond, m.script.FullMean, events)
	for _, q := range []struct {
		name   string
		target *harness.Target
	}{{"p50", harness.AtMost("ratio", 1.5)}, {"p99", nil}} {
		f := harness.Compare("event at the source -> delta at a consumer of the log, "+q.name, "ms", t.Of("log", q.name), "client-go informer's handler", t.Of("informer", q.name), q.target)
		if q.name == "p50" {
			f = f.With("source to reflector", "ms", t.Of("log", "observed")).With("to the log's writer", "ms", t.Of("log", "published")).With("to the consumer", "ms", t.Of("log", "read"))
		} else {
			for _, part := range []string{"reflector", "nats", "reader"} {
				f = f.With(part+" CPU", "us/event", t.Of("log", part))
			}
			f = f.With("informer's", "us/event", t.Of("informer", "informer"))
		}
		b.Add(f)
	}
	return errors.Join(m.settle(), peer.verify(ctx, other))
}

// eventTurn lets events happen for d and tells when at had seen them, and what CPU the parts used.
func eventTurn(b *harness.Bench, s *scripted, at *harness.Child, parts map[string]*harness.Child, d time.Duration) (map[string]float64, error) {
	before := map[string]time.Duration{}
	for name, c := range parts {
		u, err := c.Usage()
		if err != nil {
			return nil, err
		}
		before[name] = u.CPU
	}
	var rv int
	var stamps []int64
	var seen arrivedAt
	if err := s.Call("rv", nil, &rv); err != nil {
		return nil, err
	}
	n := int(d.Seconds() * system.DeltasPerSecond)
	if err := at.Call("expect", expectArgs{First: rv + 1, Count: n}, nil); err != nil {
		return nil, err
	}
	work := func() error {
		return errors.Join(s.Call("run", system.ChurnArgs{Rate: system.DeltasPerSecond, For: d}, &stamps), at.Call("arrivals", nil, &seen))
	}
	for name, c := range parts {
		inner := work
		work = func() error { return b.Profiled(c, "latency-"+name, inner) }
	}
	if err := work(); err != nil {
		return nil, err
	}
	if len(stamps) != n {
		return nil, fmt.Errorf("%d events happened, want %d", len(stamps), n)
	}
	got := map[string]float64{}
	got["p50"], got["p99"] = harness.Latencies(stamps, seen.Arrived)
	got["observed"], _ = harness.Latencies(stamps, seen.Observed)
	got["published"], _ = harness.Latencies(seen.Observed, seen.Published)
	got["read"], _ = harness.Latencies(seen.Published, seen.Arrived)
	for name, c := range parts {
		u, err := c.Usage()
		if err != nil {
			return nil, err
		}
		got[name] = float64((u.CPU - before[name]).Microseconds()) / float64(n)
	}
	return got, nil
}
