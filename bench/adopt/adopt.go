package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/plane"
)

// Family holds the figures of controllers that others write.
func Family() harness.Family {
	return harness.Family{
		Name:  "adopt",
		About: "controllers on client/controller: replicas beside one elected replica, a kill -9, delays beside client-go, what thirty of them ask of the API server, an operator on controller-runtime",
		Parts: []harness.Part{
			{Name: "replicas", Run: replicas},
			{Name: "delays", Run: delays},
			{Name: "kill", Run: killed},
			{Name: "requests", Run: requests},
			{Name: "managed", Run: managed},
		},
	}
}

const (
	oursName = "ours"
	peerName = "peer"
)

// slow is the I/O of a reconcile.
const slow = 50 * time.Millisecond

// replicas compares three active replicas with one on client-go, of which the others would wait
// for its lease.
func replicas(ctx context.Context, b *harness.Bench) (err error) {
	n := harness.Pick(b, 200, 1000)
	r, err := newRig(ctx, b, "replicas", plane.PlaneConfig{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.plane.Close()) }()
	if _, err := r.write(ctx, oursName, 1, 0); err != nil {
		return err
	}
	ours, err := r.operators(ctx, 3, operatorConfig{Name: "replicas", Namespace: oursName, IO: slow}, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(ours)) }()
	peer, err := r.operators(ctx, 1, operatorConfig{Namespace: peerName, IO: slow}, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(peer)) }()
	side := func(name string, of []*harness.Child) harness.Side {
		return harness.Side{Name: name, Run: func(ctx context.Context, _ time.Duration) (map[string]float64, error) {
			before, err := r.handled(of)
			if err != nil {
				return nil, err
			}
			began, err := r.write(ctx, name, n, 0)
			if err != nil {
				return nil, err
			}
			h, err := r.await(ctx, of, n)
			if err != nil {
				return nil, err
			}
			return map[string]float64{"rate": float64(n) / h.Last.Sub(began).Seconds(), "runs": float64(h.Runs-before.Runs) / float64(n)}, nil
		}}
	}
	table, err := harness.Interleave(ctx, b, b.Plan("replicas", 2, 8, time.Second, time.Second), side(oursName, ours), side(peerName, peer))
	if err != nil {
		return err
	}
	b.Note("replicas: %d ConfigMaps are changed at once; a reconcile reads its object and waits %v; %d workers a replica", n, slow, workers)
	b.Add(harness.Compare("3 active replicas beside 1 elected one on client-go", "/s", table.Of(oursName, "rate"), "1 replica on client-go", table.Of(peerName, "rate"), harness.AtLeast("ratio", 2.8)))
	b.Add(harness.Alone("reconciles for each change, 3 replicas", "", table.Of(oursName, "runs"), harness.AtMost("ours", 1.05)))
	return nil
}

// delays measures from the write of an object to the beginning of its reconcile.
func delays(ctx context.Context, b *harness.Bench) (err error) {
	n := harness.Pick(b, 100, 400)
	const every = 10 * time.Millisecond
	r, err := newRig(ctx, b, "delays", plane.PlaneConfig{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.plane.Close()) }()
	for _, namespace := range []string{oursName, peerName} {
		if _, err := r.write(ctx, namespace, n, 0); err != nil {
			return err
		}
	}
	// Each turn has an operator of its own, so that no other one takes its share of the machine.
	side := func(side, namespace string, cfg operatorConfig) harness.Side {
		cfg.Name, cfg.Namespace = "delays-"+side, namespace
		return harness.Side{Name: side, Run: func(ctx context.Context, _ time.Duration) (_ map[string]float64, err error) {
			of, err := r.operators(ctx, 1, cfg, side == peerName)
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, stop(of)) }()
			time.Sleep(time.Second) // it looks at everything first
			if _, err := r.write(ctx, namespace, n, every); err != nil {
				return nil, err
			}
			h, err := r.await(ctx, of, n)
			if err != nil {
				return nil, err
			}
			sorted := make([]time.Duration, 0, n)
			for _, d := range h.Delays {
				sorted = append(sorted, d)
			}
			slices.Sort(sorted)
			return map[string]float64{"p50": harness.Ms(harness.QuantileOf(sorted, 0.5)), "p99": harness.Ms(harness.QuantileOf(sorted, 0.99))}, nil
		}}
	}
	table, err := harness.Interleave(ctx, b, b.Plan("delays", 2, 8, time.Second, time.Second),
		side("index", oursName, operatorConfig{}), side("log", oursName, operatorConfig{Log: r.plane.Cfg.NATS}), side(peerName, peerName, operatorConfig{}))
	if err != nil {
		return err
	}
	b.Note("delays: one of %d ConfigMaps is changed every %v; the time is in the object, taken before the request", n, every)
	for _, q := range []struct {
		name  string
		limit float64
	}{{"p50", 1.5}, {"p99", 1}} {
		for _, side := range []string{"index", "log"} {
			b.Add(harness.Compare("object changed at the API server -> reconcile begins, on the "+side+", "+q.name, "ms",
				table.Of(side, q.name), "client-go", table.Of(peerName, q.name), harness.AtMost("ratio", q.limit)))
		}
	}
	return nil
}

// requests counts the lists and watches of ConfigMaps that operators make the API server answer.
func requests(ctx context.Context, b *harness.Bench) (err error) {
	const operators = 30
	counter, err := newCounter(ctx, b)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, counter.close()) }()
	r, err := newRig(ctx, b, "requests", plane.PlaneConfig{Kubeconfig: counter.kubeconfig})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.plane.Close()) }()
	r.plane.Cfg.API = counter.url
	if _, err := r.write(ctx, oursName, 1, 0); err != nil {
		return err
	}
	asked := func(n int, peer bool) (float64, error) {
		before := counter.n.Load()
		if !peer {
			before = 0 // the reflector's are everybody's
		}
		of, err := r.operators(ctx, 1, operatorConfig{Name: fmt.Sprintf("requests-%d", n), Namespace: oursName, Count: n}, peer)
		if err != nil {
			return 0, err
		}
		if _, err = r.write(ctx, oursName, 1, 0); err == nil {
			_, err = r.await(ctx, of, 1)
		}
		return float64(counter.n.Load() - before), errors.Join(err, stop(of))
	}
	one, err := asked(1, false)
	if err != nil {
		return err
	}
	all, err := asked(operators, false)
	if err != nil {
		return err
	}
	theirs, err := asked(operators, true)
	if err != nil {
		return err
	}
	b.Note("requests: lists and watches of ConfigMaps that the API server answered since the reflector's start, or since the start of %d informers in a process of their own", operators)
	b.Add(harness.Compare(fmt.Sprintf("lists and watches of %d operators", operators), "", []float64{all}, fmt.Sprintf("%d on client-go", operators), []float64{theirs}, harness.AtMost("ours", one)).
		With("of one operator", "", []float64{one}))
	return nil
}
