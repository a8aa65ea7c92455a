package workqueue_test

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

// The rules by number are proved in services/queue/enginetest, which the
// memory engine runs on this package. Here are the properties that hold for
// every history, checked against a model that keeps nothing but facts.

// facts is what a caller may conclude from the answers alone.
type facts struct {
	added  map[string]bool   // waits, by the answers to adds
	dirty  map[string]bool   // added while held
	held   map[string]uint64 // live token by key
	expiry map[string]int64
	due    map[string]int64
	last   uint64
	paused bool
}

func TestEveryHistoryKeepsThePromises(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			history(t, rand.New(rand.NewPCG(seed, 2)), 400)
		})
	}
}

func FuzzEveryHistoryKeepsThePromises(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { history(t, rand.New(rand.NewPCG(seed, 3)), 200) })
}

func history(t *testing.T, g *rand.Rand, transactions int) {
	t.Helper()
	m := workqueue.New(workqueue.Config{LeaseFor: 2 * time.Second, Limiter: &backoff.Limiter{Kind: backoff.FastSlow, Slow: time.Second}})
	f := facts{added: map[string]bool{}, dirty: map[string]bool{}, held: map[string]uint64{}, expiry: map[string]int64{}, due: map[string]int64{}}
	now := int64(1_700_000_000_000_000)
	for range transactions {
		now += int64(g.IntN(700_000))
		in := workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: g.IntN(4)}}}
		for range g.IntN(6) {
			key := "k" + strconv.Itoa(g.IntN(9))
			op := workqueue.Op{Kind: workqueue.OpAdd, Key: key, Level: uint8(g.IntN(3))}
			switch g.IntN(6) {
			case 5:
				op = workqueue.Op{Key: key, Kind: []workqueue.OpKind{
					workqueue.OpPause, workqueue.OpResume, workqueue.OpResume, workqueue.OpRevoke, workqueue.OpDelete, workqueue.OpRetryNow,
				}[g.IntN(6)]}
			case 0:
				op.Delay = int64(g.IntN(2e6))
			case 1, 2:
				op = workqueue.Op{Kind: workqueue.OpSettle, Key: key, Token: f.held[key], Outcome: workqueue.Done}
				if g.IntN(5) == 0 {
					op.Token-- // stale or made up
				}
			}
			in.Ops = append(in.Ops, op)
		}
		f.check(t, now, &in, m.Apply(now, &in))
	}
}

// check follows one transaction: operations, due keys, expired leases, new leases.
func (f *facts) check(t *testing.T, now int64, in *workqueue.Transaction, r *workqueue.Result) {
	t.Helper()
	add := func(key string) workqueue.Status {
		switch {
		case f.held[key] != 0:
			f.dirty[key] = true
			return workqueue.MarkedDirty
		case f.added[key]:
			return workqueue.AlreadyQueued
		}
		f.added[key] = true
		return workqueue.Queued
	}
	for i, op := range in.Ops {
		got := r.Replies[i].Status
		switch {
		case op.Kind == workqueue.OpAdd && op.Delay > 0:
			if at := now + op.Delay; f.due[op.Key] == 0 || at < f.due[op.Key] {
				f.due[op.Key] = at
			}
			if got != workqueue.Delayed || r.Replies[i].ReadyAt != f.due[op.Key] {
				t.Fatalf("AddAfter(%s) = %+v, want due at %d", op.Key, r.Replies[i], f.due[op.Key])
			}
		case op.Kind == workqueue.OpAdd:
			if want := add(op.Key); got != want {
				t.Fatalf("Add(%s): status %d, want %d", op.Key, got, want)
			}
		case op.Kind == workqueue.OpSettle:
			live := f.held[op.Key] != 0 && f.held[op.Key] == op.Token
			if took := got == workqueue.Settled || got == workqueue.Requeued; took != live {
				t.Fatalf("Settle(%s, %d): status %d, live token %d", op.Key, op.Token, got, f.held[op.Key])
			}
			if live {
				if (got == workqueue.Requeued) != f.dirty[op.Key] {
					t.Fatalf("Settle(%s): status %d, dirty %v", op.Key, got, f.dirty[op.Key])
				}
				f.added[op.Key] = f.dirty[op.Key]
				delete(f.held, op.Key)
				delete(f.dirty, op.Key)
			}
		default:
			if want := f.operate(&op, add); got != want {
				t.Fatalf("operation %d on %s: status %d, want %d", op.Kind, op.Key, got, want)
			}
		}
	}
	for key, at := range f.due {
		if at <= now {
			delete(f.due, key)
			add(key)
		}
	}
	for key, at := range f.expiry {
		if f.held[key] != 0 && at <= now {
			f.added[key] = true
			delete(f.held, key)
			delete(f.dirty, key)
		}
	}
	for _, l := range r.Leases {
		if !f.added[l.Key] || f.held[l.Key] != 0 {
			t.Fatalf("%s was leased: added %v, held under %d", l.Key, f.added[l.Key], f.held[l.Key])
		}
		if l.Token <= f.last {
			t.Fatalf("token %d after %d", l.Token, f.last)
		}
		f.last = l.Token
		delete(f.added, l.Key)
		f.held[l.Key], f.expiry[l.Key] = l.Token, l.Deadline
	}
	want := workqueue.Counts{Delayed: len(f.due), Processing: len(f.held), Dirty: len(f.dirty)}
	for _, waits := range f.added {
		if waits {
			want.Ready++
		}
	}
	if r.Counts != want {
		t.Fatalf("counts %+v, want %+v", r.Counts, want)
	}
	if f.paused && len(r.Leases) > 0 {
		t.Fatalf("a paused queue leased %v", r.Leases)
	}
	if n := len(r.Leases); n < in.Takes[0].Max && want.Ready > 0 && !f.paused {
		t.Fatalf("%d leased of %d wanted while %d were ready", n, in.Takes[0].Max, want.Ready)
	}
}

// operate follows what operators do.
func (f *facts) operate(op *workqueue.Op, add func(string) workqueue.Status) workqueue.Status {
	held := f.held[op.Key] != 0
	switch op.Kind {
	case workqueue.OpPause, workqueue.OpResume:
		f.paused = op.Kind == workqueue.OpPause
	case workqueue.OpRevoke:
		if !held {
			return workqueue.Unchanged
		}
		delete(f.held, op.Key)
		delete(f.dirty, op.Key)
		f.added[op.Key] = true
	case workqueue.OpDelete:
		switch {
		case held:
			return workqueue.Held
		case !f.added[op.Key] && f.due[op.Key] == 0:
			return workqueue.Unchanged
		}
		delete(f.added, op.Key)
		delete(f.due, op.Key)
	case workqueue.OpRetryNow:
		if f.due[op.Key] == 0 {
			return workqueue.Unchanged
		}
		delete(f.due, op.Key)
		add(op.Key)
	}
	return workqueue.OK
}

func TestNothingIsKeptOfAnIdleKey(t *testing.T) {
	t.Parallel()
	m := workqueue.New(workqueue.Config{})
	now := int64(1e15)
	for i := range 100 {
		op := workqueue.Op{Kind: workqueue.OpAdd, Key: "k" + strconv.Itoa(i), Trace: "00-x", More: &workqueue.More{
			Barrier: workqueue.NewBarrier(workqueue.Mark{Collection: "dev/p.v1", RV: "1"}),
		}}
		r := m.Apply(now, &workqueue.Transaction{Ops: []workqueue.Op{op}, Takes: []workqueue.Take{{Holder: "w", Max: 1}}})
		m.Apply(now, &workqueue.Transaction{Ops: []workqueue.Op{
			{Kind: workqueue.OpExpect, Key: op.Key, Token: r.Leases[0].Token, More: &workqueue.More{Owner: "u", Creates: []string{"p"}}},
			{Kind: workqueue.OpSettle, Key: op.Key, Token: r.Leases[0].Token, Outcome: workqueue.Forget},
		}})
	}
	if n := len(m.Snapshot().Items); n != 100 {
		t.Errorf("%d keys keep their barrier, want 100", n)
	}
	m.Apply(now+(5*time.Minute).Microseconds(), &workqueue.Transaction{})
	if items := m.Snapshot().Items; len(items) != 0 {
		t.Errorf("kept after done, forget and the expiry of barriers and expectations: %+v", items)
	}
}

func TestAQueueIsRestoredInSteps(t *testing.T) {
	t.Parallel()
	limiter := backoff.Controller()
	for seed := range uint64(20) {
		m := workqueue.New(workqueue.Config{LeaseFor: time.Second, Limiter: &limiter, BarrierRetention: time.Second})
		g := rand.New(rand.NewPCG(seed, 9))
		now := int64(1e15)
		var held []workqueue.Lease
		apply := func() {
			in := workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: g.IntN(5)}}}
			for range g.IntN(20) {
				op := workqueue.Op{Kind: workqueue.OpAdd, Key: "k" + strconv.Itoa(g.IntN(200)), Level: uint8(g.IntN(8)), Limited: g.IntN(3) == 0, Delay: int64(g.IntN(2)) * int64(g.IntN(2e6))}
				switch g.IntN(8) {
				case 0:
					op.Kind, op.Key = workqueue.OpBackoffNext, op.Key+"-id"
				case 1:
					op.Kind = workqueue.OpDelete
				case 2:
					op.Kind, op.Key = workqueue.OpBackoffReset, op.Key+"-id"
				case 3:
					op.More = &workqueue.More{Barrier: workqueue.NewBarrier(workqueue.Mark{Collection: "dev/p.v1", RV: "7"})}
				case 4, 5:
					if len(held) > 0 {
						l := held[g.IntN(len(held))]
						op = workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Outcome(1 + g.IntN(6))}
					}
				}
				in.Ops = append(in.Ops, op)
			}
			held = append(held, m.Apply(now, &in).Leases...)
			now += g.Int64N(300_000)
		}
		for range 60 {
			apply()
		}
		want := m.Snapshot()
		restorer := workqueue.NewRestorer(m.Head())
		for it := range m.SavedItems() {
			restorer.Add([]workqueue.SavedItem{it}, nil)
		}
		for e := range m.SavedEntries() {
			restorer.Add(nil, []workqueue.SavedEntry{e})
		}
		if diff := cmp.Diff(restorer.Done().Snapshot(), want, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d (-in steps +at once):\n%s", seed, diff)
		}
	}
}

func TestASnapshotIsTheWholeQueue(t *testing.T) {
	t.Parallel()
	m := workqueue.New(workqueue.Config{MaxRetries: 2})
	now := int64(1e15)
	for i := range 20 {
		key := "k" + strconv.Itoa(i)
		m.Apply(now, &workqueue.Transaction{Ops: []workqueue.Op{
			{Kind: workqueue.OpAdd, Key: key, Level: uint8(i % 8), Limited: i%2 == 0},
			{Kind: workqueue.OpAdd, Key: key, Delay: int64(i) * 1e6},
		}, Takes: []workqueue.Take{{Holder: "w", Max: i % 2}}})
	}
	again := workqueue.Restore(m.Snapshot())
	if diff := cmp.Diff(again.Snapshot(), m.Snapshot(), cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("restored (-got +want):\n%s", diff)
	}
	in := &workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 100}}}
	if diff := cmp.Diff(again.Apply(now+60e6, in), m.Apply(now+60e6, in), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the next transaction (-got +want):\n%s", diff)
	}
}

func TestConfigFaultsAreNamed(t *testing.T) {
	t.Parallel()
	bad := workqueue.Config{
		Limiter:  &backoff.Limiter{Kind: backoff.Bucket},
		LeaseFor: time.Millisecond, BarrierRetention: -1, MaxRetries: -1, Partitions: workqueue.MaxPartitions + 1,
	}
	err := bad.Validate()
	for _, field := range []string{"rate_limiter", "lease_duration", "barrier_retention", "max_retries", "partitions"} {
		found := false
		for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
			f, ok := errors.AsType[*workqueue.FieldError](e)
			found = found || ok && f.Field == field
		}
		if !found {
			t.Errorf("no fault of %s in %v", field, err)
		}
	}
	if err := (workqueue.Config{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
}
