package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/job"
)

// buildJob wires the Job controller: Jobs by their own key, pods by the Jobs
// that own them or have owned them.
func buildJob(s *Service, q *client.Queue) (plan, error) {
	jobs, pods := jobsOf(s.cfg.Cluster), podsOf(s.cfg.Cluster)
	recorder := kube.NewRecorder(s.deps.Kube, "job-controller", s.cfg.Identity, s.log)
	s.events = append(s.events, recorder)
	rec, err := job.New(job.Config{Metrics: s.deps.Telemetry.Registry}, jobWriter{s.deps.Kube}, recorder, s.log)
	if err != nil {
		return plan{}, err
	}
	return plan{
		name: "job", primary: jobs, others: map[delta.Collection]client.Mapper{pods: job.Wakes},
		delay: new(job.Batching).Delay, gather: map[delta.Collection]time.Duration{pods: job.Gathering}, limiter: jobLimiter(),
		rec: &jobAdapter{reads: newReads(s, "job"), rec: rec, queue: q, jobs: jobs.String(), pods: pods.String()},
	}, nil
}

// jobLimiter is the back-off after an error: 1 s doubling to 60 s.
func jobLimiter() client.RateLimiter { return client.Exponential(time.Second, time.Minute) }

// jobAdapter is the Job reconciler as a [client.Reconciler].
type jobAdapter struct {
	*reads

	rec        *job.Reconciler
	queue      *client.Queue
	jobs, pods string
}

// Reconcile implements [client.Reconciler].
func (a *jobAdapter) Reconcile(ctx context.Context, item client.Item) (client.Result, error) {
	if namespace, ok := job.OrphansOf(item.Key); ok {
		return a.wakeSelecting(ctx, namespace, item)
	}
	req := job.Request{
		Key: item.Key, Token: item.Token, Attempt: item.Attempt, State: item.State,
		Lease: &jobLease{a.queue, item},
	}
	reader := &jobReader{jobAdapter: a, item: item, read: client.Reading{}}
	req.Reader = reader
	if e := item.Expectations; e != nil {
		req.Expected = job.Expected{Owner: e.OwnerUID, Creations: e.Creations, Deletions: e.Deletions, Token: e.Token}
	}
	return a.result(a.rec.Reconcile(ctx, req), reader.read)
}

// wakeSelecting wakes the Jobs of a namespace that may select pods they have not
// made, behind the revision at which such a pod was seen.
func (a *jobAdapter) wakeSelecting(ctx context.Context, namespace string, item client.Item) (client.Result, error) {
	jobs, read, err := a.index.List(ctx, a.jobs, client.ListOptions{
		ReadOptions: client.ReadOptions{AtLeast: item.AtLeast(a.jobs), View: client.ViewKeys},
		Namespace:   namespace, FieldSelector: job.ManualSelector,
	})
	if err := a.heard(ctx, err); err != nil {
		return settled(client.Result{}, err)
	}
	seen := client.Barrier{}
	if pods := item.AtLeast(a.pods); !pods.IsZero() {
		seen.Raise(a.pods, pods)
	}
	cause := client.TraceOf(ctx)
	items := make([]client.AddItem, len(jobs))
	for i, j := range jobs {
		items[i] = client.AddItem{Key: j.Key, Barrier: seen, Trace: cause}
	}
	if _, err := a.queue.Add(ctx, items...); err != nil { // no items, no call
		return client.Result{}, err
	}
	return client.Result{ReadAt: client.Reading{a.jobs: read}, Wrote: seen}, nil
}

// result is how the key is settled: read at the earliest revision that the sync says, with the
// upper bounds of all that was read.
func (a *jobAdapter) result(r job.Result, read client.Reading) (client.Result, error) {
	res := client.Result{After: r.After, ReadAt: client.Reading{}, Wrote: a.barrier(r.Wrote)}
	for collection, at := range a.barrier(r.ReadAt) {
		b := client.Bounds{Revision: at, Upper: at}
		if upper := read[collection].Upper; upper.Compare(at) > 0 {
			b.Upper = upper
		}
		res.ReadAt[collection] = b
	}
	switch r.Settle {
	case job.Forget:
		res.Outcome = client.OutcomeForget
	case job.After:
		res.Outcome = client.OutcomeAfter
	case job.RateLimited:
		res.Outcome = client.OutcomeRateLimited
		return settled(res, r.Err) // an index that is behind or away gives the key back uncounted
	case job.Dead:
		res.Outcome = client.OutcomeDead
		return res, client.Terminal(r.Err)
	case job.Lost:
		res.Outcome = client.OutcomeAbandon
	default:
		return res, fmt.Errorf("controllers: job ended with the unknown outcome %v", r.Settle)
	}
	if r.Err != nil {
		res.Reason = r.Err.Error()
	}
	return res, nil
}

func (a *jobAdapter) barrier(r job.Revisions) client.Barrier {
	b := client.Barrier{}
	if !r.Jobs.IsZero() {
		b.Raise(a.jobs, r.Jobs)
	}
	if !r.Pods.IsZero() {
		b.Raise(a.pods, r.Pods)
	}
	return b
}

// jobReader reads at the item's barrier.
type jobReader struct {
	*jobAdapter
	item client.Item
	read client.Reading
}

func (r *jobReader) at(collection string) client.ReadOptions {
	return client.ReadOptions{AtLeast: r.item.AtLeast(collection)}
}

func (r *jobReader) saw(collection string, at client.Bounds, err error) {
	if err == nil {
		r.read.Raise(collection, at)
	}
}

func (r *jobReader) Job(ctx context.Context, namespace, name string) ([]byte, delta.Revision, error) {
	obj, at, err := r.index.Find(ctx, r.jobs, string(delta.NewKey(namespace, name)), r.at(r.jobs))
	r.saw(r.jobs, at, err)
	if err := r.heard(ctx, err); err != nil || obj == nil {
		return nil, at.Revision, err
	}
	return obj.Payload, at.Revision, nil
}

func (r *jobReader) OwnedPods(ctx context.Context, namespace string, uid types.UID) ([][]byte, delta.Revision, error) {
	objs, at, err := r.index.ByIndex(ctx, r.pods, "owner", []string{string(uid)}, r.at(r.pods))
	r.saw(r.pods, at, err)
	var out [][]byte
	for _, obj := range objs {
		if delta.Key(obj.Key).Namespace() == namespace {
			out = append(out, obj.Payload)
		}
	}
	return out, at.Revision, r.heard(ctx, err)
}

func (r *jobReader) PodKeys(ctx context.Context, namespace, selector string) ([]string, delta.Revision, error) {
	o := client.ListOptions{ReadOptions: r.at(r.pods), Namespace: namespace, Labels: selector}
	o.View = client.ViewKeys
	objs, at, err := r.index.List(ctx, r.pods, o)
	r.saw(r.pods, at, err)
	names := make([]string, len(objs))
	for i, obj := range objs {
		names[i] = delta.Key(obj.Key).Name()
	}
	return names, at.Revision, r.heard(ctx, err)
}

func (r *jobReader) Pods(ctx context.Context, namespace string, names []string) ([][]byte, delta.Revision, error) {
	var out [][]byte
	var oldest delta.Revision
	for chunk := range slices.Chunk(names, 1000) {
		keys := make([]string, len(chunk))
		for i, name := range chunk {
			keys[i] = string(delta.NewKey(namespace, name))
		}
		got, err := r.index.BatchGet(ctx, r.pods, keys, r.at(r.pods))
		r.saw(r.pods, got.Bounds, err)
		if err := r.heard(ctx, err); err != nil {
			return nil, got.Bounds.Revision, err
		}
		if oldest.IsZero() || got.Bounds.Compare(oldest) < 0 {
			oldest = got.Bounds.Revision
		}
		for _, obj := range got.Objects {
			out = append(out, obj.Payload)
		}
	}
	return out, oldest, nil
}

// jobLease is the item's lease.
type jobLease struct {
	queue *client.Queue
	item  client.Item
}

func (l *jobLease) Alive() error { return lost(l.item.Alive()) }

func (l *jobLease) Save(ctx context.Context, state []byte) error {
	return lost(l.queue.SaveState(ctx, l.item.Key, l.item.Token, state))
}

func (l *jobLease) Expect(ctx context.Context, owner string, creations, deletions []string) error {
	return lost(l.queue.Expect(ctx, l.item.Key, l.item.Token, client.Expectations{OwnerUID: owner, Creations: creations, Deletions: deletions}))
}

func (l *jobLease) Observe(ctx context.Context, owner string, creations, deletions []string) error {
	_, err := l.queue.Observe(ctx, l.item.Key, client.Expectations{OwnerUID: owner, Creations: creations, Deletions: deletions})
	return lost(err)
}

func lost(err error) error {
	if errors.Is(err, client.ErrLeaseLost) {
		return fmt.Errorf("%w: %w", job.ErrLeaseLost, err)
	}
	return err
}
