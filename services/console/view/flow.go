package view

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/why"
	"github.com/deltaplane/deltaplane/internal/rpc"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

const (
	// mostWorked is of how many queues is asked who works them, which takes a call for each.
	mostWorked   = 50
	workersEvery = 3 * time.Second
)

// Flow shows the whole pipeline.
func (h *Hub) Flow(changed func()) (Reader, error) {
	return h.polled("flow", changed, func() *poll {
		f := &flow{h: h, rates: map[string]*rate{}}
		return newPoll(f.ask)
	})
}

type flow struct {
	h     *Hub
	rates map[string]*rate // of deltas, by collection; for ask alone
	// Who works the queues, and when that was asked.
	workers map[string]*consolev1.Workers
	asked   time.Time
}

func (f *flow) ask(ctx context.Context) (*consolev1.OpenResponse, error) {
	var (
		reflections *reflectorv1.ListReflectionsResponse
		collections *indexv1.ListCollectionsResponse
		queues      *queuev1.ListQueuesResponse
		errs        [3]error
		wg          sync.WaitGroup
	)
	wg.Go(func() { reflections, errs[0] = f.h.listReflections(ctx) })
	wg.Go(func() { collections, errs[1] = f.h.listCollections(ctx) })
	wg.Go(func() {
		queues, errs[2] = f.h.listQueues(ctx)
		if errs[2] == nil && time.Since(f.asked) >= workersEvery {
			f.workers, f.asked = f.h.workers(ctx, queues), time.Now()
		}
	})
	wg.Wait()
	out := &consolev1.Flow{At: timestamppb.Now(), Totals: &consolev1.FlowTotals{}}
	for i, part := range []string{why.PartReflector, why.PartIndex, why.PartQueue} {
		if errs[i] != nil {
			out.Silent = append(out.Silent, silent(part, errs[i]))
		}
	}
	out.Collections = f.joined(reflections, collections, out.GetTotals())
	for _, q := range queues.GetQueues() {
		s := summary(q, f.workers[q.GetConfig().GetName()])
		s.Rates = f.h.did.rates(s.GetQueue(), time.Now())
		out.Queues = append(out.Queues, s)
		out.Totals.Ready += s.GetReady()
		out.Totals.Delayed += s.GetDelayed()
		out.Totals.Processing += s.GetProcessing()
		out.Totals.Dead += s.GetDead()
	}
	return &consolev1.OpenResponse{Content: &consolev1.OpenResponse_Flow{Flow: out}}, nil
}

// joined are collections as the reflector and the index have them, and their sums.
func (f *flow) joined(reflections *reflectorv1.ListReflectionsResponse, collections *indexv1.ListCollectionsResponse, sum *consolev1.FlowTotals) []*consolev1.FlowCollection {
	all := map[string]*consolev1.FlowCollection{}
	of := func(name string) *consolev1.FlowCollection {
		if all[name] == nil {
			all[name] = &consolev1.FlowCollection{Collection: name}
		}
		return all[name]
	}
	now := time.Now()
	for _, r := range reflections.GetReflections() {
		m := mirror(r)
		m.PublishedRate = f.rate(r.GetCollection()).per(now, r.GetPublished())
		sum.PublishedRate += m.GetPublishedRate()
		of(r.GetCollection()).Mirror = m
	}
	for _, c := range collections.GetCollections() {
		s := served(c)
		sum.Objects += s.GetObjects()
		sum.LagRecords += s.GetLagRecords()
		of(c.GetCollection()).Served = s
	}
	maps.DeleteFunc(f.rates, func(name string, _ *rate) bool { return reflections != nil && all[name] == nil })
	return slices.SortedFunc(maps.Values(all), func(x, y *consolev1.FlowCollection) int { return cmp.Compare(x.GetCollection(), y.GetCollection()) })
}

func (f *flow) rate(collection string) *rate {
	if f.rates[collection] == nil {
		f.rates[collection] = &rate{}
	}
	return f.rates[collection]
}

// rate is how fast a counter grows.
type rate struct {
	at    time.Time
	count int64
	last  float64
}

// per is by how much a counter grew a second since it was last looked at; 0 at first, and where it
// began again.
func (r *rate) per(now time.Time, count int64) float64 {
	passed := now.Sub(r.at)
	switch {
	case r.at.IsZero() || count < r.count:
		r.last = 0
	case passed < fresh/2: // the same answer again
		return r.last
	default:
		r.last = float64(count-r.count) / passed.Seconds()
	}
	r.at, r.count = now, count
	return r.last
}

// workers asks who works queues. A queue that does not say is left out.
func (h *Hub) workers(ctx context.Context, queues *queuev1.ListQueuesResponse) map[string]*consolev1.Workers {
	out := map[string]*consolev1.Workers{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	free := make(chan struct{}, 8)
	for _, q := range queues.GetQueues()[:min(len(queues.GetQueues()), mostWorked)] {
		name := q.GetConfig().GetName()
		wg.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			answer, err := h.queues.Inspect(ctx, &queuev1.InspectRequest{Queue: name, Key: anyKey, Surroundings: true})
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out[name] = workersOf(answer.GetSurroundings())
		})
	}
	wg.Wait()
	return out
}

// anyKey is asked for where only what surrounds it matters.
const anyKey = "-"

func workersOf(s *queuev1.Surroundings) *consolev1.Workers {
	return &consolev1.Workers{Connected: s.GetWorkers(), Free: s.GetWorkersFree()}
}

func silent(part string, err error) *consolev1.Silent {
	st := Status(err)
	text := st.Message()
	if reason := rpc.Reason(st.Err()); reason != "" {
		text += " (" + reason + ")"
	}
	return &consolev1.Silent{Part: part, Why: strings.TrimSpace(text)}
}
