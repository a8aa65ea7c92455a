package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
)

func drain(resp *http.Response) error {
	_, err := io.Copy(io.Discard, resp.Body)
	return err
}

// watched is one side with watches open, of a namespace each.
type watched struct {
	*side
	mu       sync.Mutex
	delays   []time.Duration // guarded by mu
	received atomic.Int64
}

// watches measures what the delivery of an event costs: many watches of a namespace each, a config
// map in each namespace, changed in turns at the API server.
func watches(ctx context.Context, b *harness.Bench) error {
	n, rate := harness.Pick(b, 50, 500), harness.Pick(b, 100, 200)
	return with(ctx, b, 60, func(r *rig) error {
		hc := r.beside.client()
		g, making := errgroup.WithContext(ctx)
		g.SetLimit(8)
		for i := range n {
			g.Go(func() error {
				ns := fmt.Sprintf("watched-%d", i)
				return errors.Join(
					post(making, hc, r.beside.base+"/api/v1/namespaces", `{"metadata":{"name":"`+ns+`"}}`),
					post(making, hc, r.beside.base+"/api/v1/namespaces/"+ns+"/configmaps", `{"metadata":{"name":"a"},"data":{"at":"0","fill":"`+strings.Repeat("x", 1000)+`"}}`))
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		// What writes alone cost is not the watches'.
		turn := func(w *watched) harness.Side {
			name := w.name
			return harness.Side{Name: name, Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
				alone, _, err := r.writing(ctx, hc, w, d/2, n, rate)
				if err != nil {
					return nil, err
				}
				stop, err := w.open(ctx, n)
				if err != nil {
					return nil, err
				}
				cpu, wrote, err := r.writing(ctx, hc, w, d, n, rate)
				if err := errors.Join(err, stop()); err != nil {
					return nil, err
				}
				got := float64(w.received.Swap(0))
				w.mu.Lock()
				defer w.mu.Unlock()
				slices.Sort(w.delays)
				p99 := ms(harness.QuantileOf(w.delays, .99))
				w.delays = nil
				return map[string]float64{"cpu": max(0, cpu-alone) * wrote / got * 1000, "whole": cpu * 1000, "p99": p99, "share": got / wrote * 100}, nil
			}}
		}
		t, err := harness.Interleave(ctx, b, b.Plan("watches", 2, 5, 2*time.Second, 8*time.Second), turn(&watched{side: &r.ours}), turn(&watched{side: &r.beside}))
		if err != nil {
			return err
		}
		b.Note("watches: CPU is what a write costs the server more while the watches are open; the API server handles the writes too, so what they cost alone is taken off on both sides")
		f := harness.Compare(fmt.Sprintf("%d watches of a namespace each, %d events/s: server CPU per delivered event", n, rate), "us", t.Of(oursName, "cpu"), besideName, t.Of(besideName, "cpu"), harness.AtMost("ratio", .25))
		b.Add(f.With("delivered", "%", t.Of(oursName, "share")).With("beside", "%", t.Of(besideName, "share")).With("with the writes", "us", t.Of(oursName, "whole")).With("beside", "us", t.Of(besideName, "whole")))
		b.Add(harness.Compare("the same, from the write's answer to its event: p99", "ms", t.Of(oursName, "p99"), besideName, t.Of(besideName, "p99"), harness.AtMost("ours", 50)))
		return nil
	})
}

// writing changes config maps at a rate, and returns what a write cost a side's server in
// milliseconds, and how many there were.
func (r *rig) writing(ctx context.Context, hc *http.Client, w *watched, d time.Duration, n, rate int) (cpu, wrote float64, err error) {
	before, err := w.usage()
	if err != nil {
		return 0, 0, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(64)
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < d && ctx.Err() == nil; <-tick.C {
		i := int(wrote)
		wrote++
		g.Go(func() error {
			url := r.beside.base + "/api/v1/namespaces/watched-" + strconv.Itoa(i%n) + "/configmaps/a"
			return patch(ctx, hc, url, `{"data":{"at":"`+strconv.FormatInt(time.Now().UnixNano(), 10)+`"}}`)
		})
	}
	if err := g.Wait(); err != nil {
		return 0, 0, err
	}
	time.Sleep(200 * time.Millisecond) // the last are delivered
	after, err := w.usage()
	return ms(after-before) / wrote, wrote, err
}

// open opens watches, one for each namespace, and returns when all are.
func (w *watched) open(ctx context.Context, n int) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	g := errgroup.Group{}
	opened := make(chan error, n)
	hc := w.client()
	for i := range n {
		g.Go(func() error {
			url := w.base + "/api/v1/namespaces/watched-" + strconv.Itoa(i) + "/configmaps?watch=1&resourceVersion=0&fieldSelector=metadata.name=a"
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			req.Header.Set("Accept", "application/json")
			resp, err := hc.Do(req)
			opened <- err
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			return w.follow(ctx, resp.Body)
		})
	}
	for range n {
		err = errors.Join(err, <-opened)
	}
	time.Sleep(500 * time.Millisecond) // the initial state is not an event
	w.received.Store(0)
	w.mu.Lock()
	w.delays = nil
	w.mu.Unlock()
	return func() error { cancel(); return g.Wait() }, err
}

func (w *watched) follow(ctx context.Context, body io.Reader) error {
	lines := bufio.NewReaderSize(body, 16<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		now := time.Now().UnixNano()
		_, rest, _ := bytes.Cut(line, []byte(`"at":"`))
		at, _, _ := bytes.Cut(rest, []byte(`"`))
		if ns, err := strconv.ParseInt(string(at), 10, 64); err == nil && ns > 0 {
			w.received.Add(1)
			w.mu.Lock()
			w.delays = append(w.delays, time.Duration(now-ns))
			w.mu.Unlock()
		}
	}
}

func post(ctx context.Context, hc *http.Client, url, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := hc.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("POST %s: %s", url, resp.Status)
	}
	return drain(resp)
}

// readers measures many clients that come at once, as after a restart: each lists all pods and
// begins a watch behind that.
func readers(ctx context.Context, b *harness.Bench) error {
	n, many := harness.Pick(b, 1020, 5010), harness.Pick(b, 20, 100)
	return with(ctx, b, n, func(r *rig) error {
		pids := map[string]string{oursName: strconv.Itoa(r.gateway.Cmd.Process.Pid), besideName: r.pid()}
		var sides []harness.Side
		for _, s := range []*side{&r.ours, &r.beside} {
			sides = append(sides, harness.Side{Name: s.name, Run: func(ctx context.Context, _ time.Duration) (map[string]float64, error) {
				if err := resetPeak(pids[s.name]); err != nil {
					return nil, err
				}
				took, err := s.syncAll(ctx, many)
				if err != nil {
					return nil, err
				}
				rss, err := peakRSS(pids[s.name])
				return map[string]float64{"seconds": took.Seconds(), "rss": rss}, err
			}})
		}
		t, err := harness.Interleave(ctx, b, harness.Plan{What: "readers", Rounds: harness.Pick(b, 1, 5)}, sides...)
		if err != nil {
			return err
		}
		b.Add(harness.Compare(fmt.Sprintf("%d readers list %d pods, RV 0, and watch, at once: until all are synced", many, n), "s", t.Of(oursName, "seconds"), besideName, t.Of(besideName, "seconds"), harness.AtMost("ratio", 1./3)))
		b.Add(harness.Compare("the same: peak RSS of the server", "MB", t.Of(oursName, "rss"), besideName, t.Of(besideName, "rss"), harness.AtMost("ratio", .25)))
		return nil
	})
}

func (s *side) syncAll(ctx context.Context, many int) (time.Duration, error) {
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for range many {
		hc := s.client()
		g.Go(func() error {
			defer hc.CloseIdleConnections()
			if _, err := get(ctx, hc, s.base+pods+any0, false); err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+pods+"?watch=1&resourceVersion=0&fieldSelector=metadata.name=none", nil)
			if err != nil {
				return err
			}
			resp, err := hc.Do(req)
			if err != nil {
				return err
			}
			return resp.Body.Close()
		})
	}
	err := g.Wait()
	return time.Since(began), err
}

// writes measures what the way through the gateway adds to a write.
func writes(ctx context.Context, b *harness.Bench) error {
	return with(ctx, b, 60, func(r *rig) error {
		if err := post(ctx, r.beside.client(), r.beside.base+configMaps, `{"metadata":{"name":"a"}}`); err != nil {
			return err
		}
		var sides []harness.Side
		for _, s := range []*side{&r.ours, &r.beside} {
			hc := s.client()
			sides = append(sides, harness.Side{Name: s.name, Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
				var times []time.Duration
				for began := time.Now(); time.Since(began) < d; {
					at := time.Now()
					if err := patch(ctx, hc, s.base+configMaps+"/a", `{"data":{"at":"`+strconv.FormatInt(at.UnixNano(), 10)+`"}}`); err != nil {
						return nil, err
					}
					times = append(times, time.Since(at))
				}
				slices.Sort(times)
				return map[string]float64{"p50": ms(harness.QuantileOf(times, .5)), "p99": ms(harness.QuantileOf(times, .99))}, nil
			}})
		}
		t, err := harness.Interleave(ctx, b, b.Plan("writes", 2, 9, time.Second, 4*time.Second), sides...)
		if err != nil {
			return err
		}
		for q, limit := range map[string]float64{"p50": .3, "p99": 2} {
			added := make([]float64, len(t.Of(oursName, q)))
			for i := range added {
				added[i] = t.Of(oursName, q)[i] - t.Of(besideName, q)[i]
			}
			f := harness.Alone("a write through the gateway, added: "+q, "ms", added, harness.AtMost("ours", limit))
			b.Add(f.With("through it", "ms", t.Of(oursName, q)).With("direct", "ms", t.Of(besideName, q)))
		}
		return nil
	})
}
