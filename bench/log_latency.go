package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// logLatency measures the time from an event at the API server until a consumer
// of the log has it, beside a client-go informer's handler on an API server that
// plays the same. Each of them is a process of its own; the clock is the machine's.
func logLatency(ctx context.Context, b *bench) (err error) {
	cfg := scriptConfig{Pods: pick(b, 3000, 9990), Templates: pick(b, 500, 600)}
	m, err := startMirror(ctx, b, "latency", cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	leader, err := m.reflector(ctx, "bench", m.nats)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leader.close()) }()
	other, err := startScript(ctx, b, "latency-informer", cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.stop()) }()
	peer, err := startPeers(ctx, b, jsonConfig{URL: other.URL, Count: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.stop()) }()
	if err := errors.Join(m.settle(), peer.call("load", nil, nil), peer.verify(ctx, other)); err != nil {
		return err
	}
	events := 0
	turn := func(name string, s *scripted, at *child, parts map[string]*child) side {
		return side{name, func(_ context.Context, d time.Duration) (got map[string]float64, err error) {
			events += int(d.Seconds() * deltasPerSecond)
			return eventTurn(b, s, at, parts, d)
		}}
	}
	t, err := interleave(ctx, b, b.plan("latency", 2, 7, 1500*time.Millisecond, 8*time.Second),
		turn("log", m.script, m.reader.child, map[string]*child{"reflector": leader.child, "nats": m.log, "reader": m.reader.child}),
		turn("informer", other, peer.child, map[string]*child{"informer": peer.child}))
	if err != nil {
		return err
	}
	b.note("latency: %d/s open loop, %d bytes each in JSON, every tenth pod deleted and created anew in turn, %d events in all; log: a process of its own, 1 replica, file storage, default sync", deltasPerSecond, m.script.FullMean, events)
	for _, q := range []struct {
		name   string
		target *target
	}{{"p50", atMost("ratio", 1.5)}, {"p99", nil}} {
		f := compare("event at the source -> delta at a consumer of the log, "+q.name, "ms", t.of("log", q.name), "client-go informer's handler", t.of("informer", q.name), q.target)
		if q.name == "p50" {
			f = f.with("source to reflector", "ms", t.of("log", "observed")).with("to the log's writer", "ms", t.of("log", "published")).with("to the consumer", "ms", t.of("log", "read"))
		} else {
			for _, part := range []string{"reflector", "nats", "reader"} {
				f = f.with(part+" CPU", "us/event", t.of("log", part))
			}
			f = f.with("informer's", "us/event", t.of("informer", "informer"))
		}
		b.add(f)
	}
	return errors.Join(m.settle(), peer.verify(ctx, other))
}

// eventTurn lets events happen for d and tells when at had seen them, and what CPU the parts used.
func eventTurn(b *bench, s *scripted, at *child, parts map[string]*child, d time.Duration) (map[string]float64, error) {
	before := map[string]time.Duration{}
	for name, c := range parts {
		u, err := c.usage()
		if err != nil {
			return nil, err
		}
		before[name] = u.CPU
	}
	var rv int
	var stamps []int64
	var seen arrivedAt
	if err := s.call("rv", nil, &rv); err != nil {
		return nil, err
	}
	n := int(d.Seconds() * deltasPerSecond)
	if err := at.call("expect", expectArgs{First: rv + 1, Count: n}, nil); err != nil {
		return nil, err
	}
	work := func() error {
		return errors.Join(s.call("run", churnArgs{Rate: deltasPerSecond, For: d}, &stamps), at.call("arrivals", nil, &seen))
	}
	for name, c := range parts {
		inner := work
		work = func() error { return b.profiled(c, "latency-"+name, inner) }
	}
	if err := work(); err != nil {
		return nil, err
	}
	if len(stamps) != n {
		return nil, fmt.Errorf("%d events happened, want %d", len(stamps), n)
	}
	got := map[string]float64{}
	got["p50"], got["p99"] = latencies(stamps, seen.Arrived)
	got["observed"], _ = latencies(stamps, seen.Observed)
	got["published"], _ = latencies(seen.Observed, seen.Published)
	got["read"], _ = latencies(seen.Published, seen.Arrived)
	for name, c := range parts {
		u, err := c.usage()
		if err != nil {
			return nil, err
		}
		got[name] = float64((u.CPU - before[name]).Microseconds()) / float64(n)
	}
	return got, nil
}
