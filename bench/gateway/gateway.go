package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
)

// Family is the figures of the gateway.
func Family() harness.Family {
	return harness.Family{
		Name: "gateway", About: "the Kubernetes endpoint, beside the API server that it stands before",
		Parts: []harness.Part{
			{Name: "lists", Run: lists},
			{Name: "recent", Run: recent},
			{Name: "watches", Run: watches},
			{Name: "readers", Run: readers},
			{Name: "writes", Run: writes},
		},
	}
}

// with runs a part on a rig.
func with(ctx context.Context, b *harness.Bench, n int, run func(*rig) error) (err error) {
	r, err := newRig(ctx, b, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	return run(r)
}

// lists measures what a list of everything costs the server.
func lists(ctx context.Context, b *harness.Bench) error {
	n := harness.Pick(b, 2010, 10_020)
	return with(ctx, b, n, func(r *rig) error {
		var sides []harness.Side
		for _, gzip := range []bool{false, true} {
			for _, s := range []*side{&r.ours, &r.beside} {
				hc := s.client()
				name := s.name
				if gzip {
					name += " gzip"
				}
				sides = append(sides, harness.Side{Name: name, Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
					return listTurn(ctx, s, hc, d, gzip)
				}})
			}
		}
		t, err := harness.Interleave(ctx, b, b.Plan("lists", 2, 7, time.Second, 3*time.Second), sides...)
		if err != nil {
			return err
		}
		f := harness.Compare(fmt.Sprintf("LIST of %d pods, RV 0, JSON: server CPU per request", n), "ms", t.Of(oursName, "cpu"), besideName, t.Of(besideName, "cpu"), harness.AtMost("ratio", .125))
		b.Add(f.With("size", "MB", t.Of(oursName, "size")).With("p50", "ms", t.Of(oursName, "p50")).With("beside", "ms", t.Of(besideName, "p50")))
		f = harness.Compare("the same with gzip", "ms", t.Of(oursName+" gzip", "cpu"), besideName, t.Of(besideName+" gzip", "cpu"), nil)
		b.Add(f.With("size", "MB", t.Of(oursName+" gzip", "size")).With("beside", "MB", t.Of(besideName+" gzip", "size")))
		return nil
	})
}

func listTurn(ctx context.Context, s *side, hc *http.Client, d time.Duration, gzip bool) (map[string]float64, error) {
	before, err := s.usage()
	if err != nil {
		return nil, err
	}
	var times []time.Duration
	size := int64(0)
	for began := time.Now(); time.Since(began) < d; {
		at := time.Now()
		a, err := get(ctx, hc, s.base+pods+any0, gzip)
		if err != nil {
			return nil, err
		}
		if s.name == oursName && a.by != "index" {
			return nil, errors.New("a list was not answered from the index")
		}
		times, size = append(times, time.Since(at)), a.bytes
	}
	after, err := s.usage()
	if err != nil {
		return nil, err
	}
	slices.Sort(times)
	return map[string]float64{
		"cpu": ms(after-before) / float64(len(times)), "size": float64(size) / 1e6, "p50": ms(harness.QuantileOf(times, .5)),
	}, nil
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

// recent measures how long the most recent list takes, of a collection that changes all the time
// and of one that rests.
func recent(ctx context.Context, b *harness.Bench) error {
	n := harness.Pick(b, 2010, 10_020)
	return with(ctx, b, n, func(r *rig) error {
		if err := r.makeChurned(ctx); err != nil {
			return err
		}
		for _, busy := range []bool{true, false} {
			what, target := "quiet", 1.1
			if busy {
				what, target = "busy", 1.0
			}
			var sides []harness.Side
			for _, s := range []*side{&r.ours, &r.beside} {
				hc := s.client()
				sides = append(sides, harness.Side{Name: s.name, Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
					stop := func() error { return nil }
					if busy {
						stop = r.churn(ctx, 50)
					}
					got, err := recentTurn(ctx, s, hc, d)
					return got, errors.Join(err, stop())
				}})
			}
			t, err := harness.Interleave(ctx, b, b.Plan("recent "+what, 2, 7, time.Second, 4*time.Second), sides...)
			if err != nil {
				return err
			}
			f := harness.Compare(fmt.Sprintf("LIST of %d pods, no RV, %s collection: p50", n, what), "ms", t.Of(oursName, "p50"), besideName, t.Of(besideName, "p50"), harness.AtMost("ratio", target))
			b.Add(f.With("answered from the index", "%", t.Of(oursName, "index")))
		}
		return nil
	})
}

func recentTurn(ctx context.Context, s *side, hc *http.Client, d time.Duration) (map[string]float64, error) {
	var times []time.Duration
	index := 0
	for began := time.Now(); time.Since(began) < d; {
		at := time.Now()
		a, err := get(ctx, hc, s.base+pods, false)
		if err != nil {
			return nil, err
		}
		if a.by == "index" {
			index++
		}
		times = append(times, time.Since(at))
	}
	slices.Sort(times)
	return map[string]float64{"p50": ms(harness.QuantileOf(times, .5)), "index": 100 * float64(index) / float64(len(times))}, nil
}

// churned is a pod that nobody runs.
const churned = "/api/v1/namespaces/default/pods/churned"

func (r *rig) makeChurned(ctx context.Context) error {
	return post(ctx, r.beside.client(), r.beside.base+"/api/v1/namespaces/default/pods",
		`{"metadata":{"name":"churned"},"spec":{"schedulerName":"nobody","automountServiceAccountToken":false,"containers":[{"name":"a","image":"a"}]}}`)
}

// churn changes a pod so often a second, at the API server, until it is stopped.
func (r *rig) churn(ctx context.Context, rate int) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	g := errgroup.Group{}
	hc := r.beside.client()
	g.Go(func() error {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		var err error
		for i := 0; err == nil; i++ {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
				err = patch(ctx, hc, r.beside.base+churned, `{"metadata":{"annotations":{"bench":"`+strconv.Itoa(i)+`"}}}`)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
	return func() error { cancel(); return g.Wait() }
}

func patch(ctx context.Context, hc *http.Client, url, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/merge-patch+json")
	resp, err := hc.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("PATCH %s: %s", url, resp.Status)
	}
	return drain(resp)
}
