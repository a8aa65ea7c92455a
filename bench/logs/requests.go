package logs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/system"
)

// manyConsumers is how many want to know about the same pods.
const manyConsumers = 20

// logRequests counts what an API server is asked for when 1 and when 20
// consumers follow the pods: by one reflector and a log, and by an informer each.
func logRequests(ctx context.Context, b *harness.Bench) error {
	err := countRequests(ctx, b, "lists", false)
	if b.Quick {
		b.LeaveOut("requests to an API server that sends initial states as events (watch-list)", "--quick")
		return err
	}
	return errors.Join(err, countRequests(ctx, b, "watch-list", true))
}

// countRequests brings consumers up to date, lets some events happen, counts, compares
// what everybody holds, and does so again with more consumers.
func countRequests(ctx context.Context, b *harness.Bench, how string, streams bool) (err error) {
	cfg := scriptConfig{Pods: 990, Templates: 500, Streams: streams}
	m, err := startMirror(ctx, b, "requests-"+how, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	leader, err := m.reflector(ctx, "bench", m.nats)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leader.Close()) }()
	other, err := startScript(ctx, b, "requests-informers-"+how, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.Stop()) }()
	reach := m.settle
	for total, more := 0, 1; total < manyConsumers; more = manyConsumers - total {
		peer, err := startPeers(ctx, b, jsonConfig{URL: other.URL, Count: more})
		if err != nil {
			return err
		}
		defer func() { _ = peer.Stop() }() // what it had to tell has been compared
		if total > 0 {
			further, err := startReaders(ctx, b, m.nats, more, m.script)
			if err != nil {
				return err
			}
			defer func() { _ = further.Stop() }()
			reach = func() error { return errors.Join(m.settle(), further.verify(m.script)) }
		}
		total += more
		some := system.ChurnArgs{Rate: system.DeltasPerSecond, For: 300 * time.Millisecond}
		err = errors.Join(reach(), peer.Call("load", nil, nil), m.script.Call("run", some, nil), other.Call("run", some, nil),
			reach(), peer.verify(ctx, other))
		if err != nil {
			return err
		}
		if err := addRequests(b, m.script, other, total, how); err != nil {
			return err
		}
	}
	return nil
}

// addRequests adds how often two API servers were asked, one by the reflector, one by n informers.
func addRequests(b *harness.Bench, reflected, informed *scripted, n int, how string) error {
	ours, err := reflected.counts()
	if err != nil {
		return err
	}
	theirs, err := informed.counts()
	if err != nil {
		return err
	}
	one := func(v int) []float64 { return []float64{float64(v)} }
	name := fmt.Sprintf("requests for pods at the API server, consumers: %d, by %s", n, how)
	f := harness.Compare(name, "requests", one(ours.Lists+ours.Watches), fmt.Sprintf("client-go informers: %d", n), one(theirs.Lists+theirs.Watches), harness.AtMost("ours", 2))
	f = f.With("lists", "", one(ours.Lists)).With("watches", "", one(ours.Watches))
	b.Add(f.With("informers' lists", "", one(theirs.Lists)).With("watches", "", one(theirs.Watches)))
	if ours.Refused+theirs.Refused > 0 {
		b.Note("requests: watches refused because they asked for an initial state, and not counted: %d of the reflector, %d of %d informers", ours.Refused, theirs.Refused, n)
	}
	return nil
}
