package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/journal"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/enginetest"
)

const name = "dev/job"

// logged opens an engine in dir as it would be after kill -9: the one before
// is never closed.
func logged(t *testing.T, dir string, cfg Config) (*Engine, engine.Queue) {
	t.Helper()
	return loggedAs(t, dir, cfg, workqueue.Config{})
}

func loggedAs(t *testing.T, dir string, cfg Config, queue workqueue.Config) (*Engine, engine.Queue) {
	t.Helper()
	return loggedOn(t, dir, journal.Options{}, cfg, queue)
}

// loggedOn is loggedAs with a disk that a test makes fail.
func loggedOn(t *testing.T, dir string, disk journal.Options, cfg Config, queue workqueue.Config) (*Engine, engine.Queue) {
	t.Helper()
	cfg.Dir = dir
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.lock.Close(); err != nil { // as the end of the process does
		t.Fatal(err)
	}
	e.lock, e.disk = nil, disk
	q, _, err := e.Configure(t.Context(), name, queue)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e, q
}

func apply(t *testing.T, q engine.Queue, in workqueue.Transaction) *workqueue.Result {
	t.Helper()
	r, err := q.Partitions()[0].Apply(t.Context(), &in)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func adds(n int) workqueue.Transaction {
	t := workqueue.Transaction{}
	for i := range n {
		t.Ops = append(t.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: "k" + strconv.Itoa(i), Level: workqueue.Level(0)})
	}
	return t
}

func TestAcknowledgedKeysSurviveKill9(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e, q := logged(t, dir, Config{})
	apply(t, q, adds(1000))
	held := apply(t, q, workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 10, For: time.Hour.Microseconds()}}}).Leases
	apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{
		{Kind: workqueue.OpSettle, Key: held[0].Key, Token: held[0].Token, Outcome: workqueue.Forget},
		{Kind: workqueue.OpAdd, Key: "later", Delay: time.Hour.Microseconds()},
		{Kind: workqueue.OpClose},
	}})
	before := apply(t, q, workqueue.Transaction{}).Counts

	e2, q2 := logged(t, dir, Config{})
	if e2.Generation() == e.Generation() {
		t.Error("a restart must be a new generation")
	}
	r := apply(t, q2, workqueue.Transaction{})
	if diff := gocmp.Diff(r.Counts, before); diff != "" {
		t.Errorf("counts after the restart (-got +want):\n%s", diff)
	}
	if st, _ := q2.Partitions()[0].Status(t.Context()); !st.Closed {
		t.Error("the queue was opened by the restart")
	}
	if wait := r.NextDue - r.Now; wait > 2.1e6 {
		t.Errorf("leases from before end in %d us, want 2 s: their streams are gone", wait)
	}
	next := apply(t, q2, workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 1}}}).Leases[0]
	if next.Token <= held[9].Token || next.Key != "k10" {
		t.Errorf("next lease %+v: tokens grow across restarts and the order is kept", next)
	}
	// The holder from before may still settle.
	l := held[1]
	got := apply(t, q2, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Done}}})
	if got.Replies[0].Status != workqueue.Settled {
		t.Errorf("settling across the restart: status %d", got.Replies[0].Status)
	}
}

func TestALogIsRebuiltExactlyAfterAnyHistory(t *testing.T) {
	t.Parallel()
	limiter := backoff.Controller()
	cfgs := map[string]workqueue.Config{
		"plain":          {LeaseFor: 2 * time.Second, MaxRetries: 3},
		"few deliveries": {LeaseFor: time.Second, MaxDeliveries: 2, MaxRetries: 1},
		"all options": {
			LeaseFor: time.Second, AbsorbDelays: true, ReserveOnce: true, Aging: time.Second, Limiter: &limiter,
			Dispatch: &workqueue.Rate{QPS: 20, Burst: 5}, Partitions: 3, MaxProcessing: 3 * time.Second, Durability: workqueue.Fsync,
			Backoff: workqueue.BackoffConfig{Initial: time.Millisecond, Max: time.Second, Jitter: 0.2},
		},
	}
	for name, cfg := range cfgs {
		for _, compact := range []int64{1 << 30, 2000} { // never, and all the time
			t.Run(name+" "+strconv.FormatInt(compact, 10), func(t *testing.T) {
				t.Parallel()
				cfg := cfg // each changes its own
				now := time.Unix(1_700_000_000, 0)
				e, q := loggedAs(t, t.TempDir(), Config{CompactBytes: compact, Now: func() time.Time { return now }}, cfg)
				parts := q.(*queue).parts
				gens := make([]*enginetest.Gen, len(parts))
				for p := range parts {
					gens[p] = enginetest.NewGen(rand.New(rand.NewPCG(7, uint64(p))), p > 0, cfg.WithDefaults().Limiter.Buckets())
				}
				for i := range 600 {
					p := i % len(parts)
					in := gens[p].Next()
					r, err := parts[p].Apply(t.Context(), &in)
					if err != nil {
						t.Fatal(err)
					}
					gens[p].Learn(r)
					now = now.Add(time.Duration(i%7) * 100 * time.Millisecond)
					if i%50 == 49 && cfg.Dispatch != nil { // what that does to the bucket depends on when it is done
						cfg.Dispatch = &workqueue.Rate{QPS: float64(i), Burst: i/50 + 1}
						if _, _, err := e.Configure(t.Context(), q.(*queue).name, cfg); err != nil {
							t.Fatal(err)
						}
					}
				}
				for _, p := range parts { // a transaction that changes nothing is not logged, but moves the time of the latest one
					if _, err := p.Apply(t.Context(), &workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAdd, Key: "last"}}}); err != nil {
						t.Fatal(err)
					}
				}
				q.(*queue).work.Wait()
				ms, _, err := replay(q.(*queue).path())
				if err != nil {
					t.Fatal(err)
				}
				for p, m := range ms {
					if diff := gocmp.Diff(m.Snapshot(), parts[p].m.Snapshot(), cmpopts.EquateEmpty()); diff != "" {
						t.Errorf("partition %d rebuilt (-got +want):\n%s", p, diff)
					}
				}
			})
		}
	}
}

func TestATornTailIsCutOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, q := logged(t, dir, Config{})
	apply(t, q, adds(10))
	path := q.(*queue).path()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, q, adds(20)) // ten more
	longer, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := len(whole); cut < len(longer); cut += 7 {
		if err := os.WriteFile(path, longer[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		ms, end, err := replay(path)
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if end.Damaged {
			t.Fatalf("cut at %d: taken for damage", cut)
		}
		if n := ms[0].Counts().Ready; n != 10 {
			t.Fatalf("cut at %d: %d keys, want 10", cut, n)
		}
	}
}

func TestADirectoryServesOneProcessAtATime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e, err := New(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if other, err := New(Config{Dir: dir}); err == nil {
		t.Error("a second engine opened the logs of a running one")
		_ = other.Close()
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := New(Config{Dir: dir})
	if err != nil {
		t.Fatalf("after the first one was closed: %v", err)
	}
	_ = next.Close()
}

func TestALogThatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x"+logSuffix), []byte("no log at all, just some text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Dir: dir}); err == nil {
		t.Error("it was accepted as an empty queue")
	}
}

func TestALogThatCannotBeWrittenAcknowledgesNothing(t *testing.T) {
	t.Parallel()
	disk := &disk{}
	e, q := loggedOn(t, t.TempDir(), disk.options(), Config{}, workqueue.Config{})
	disk.refuse(os.ErrClosed, nil)
	in := adds(1)
	for range 2 {
		if _, err := q.Partitions()[0].Apply(t.Context(), &in); !errors.Is(err, engine.ErrUnavailable) {
			t.Fatalf("Apply = %v, want ErrUnavailable", err)
		}
	}
	if err := e.Check(context.Background()); err == nil {
		t.Error("Check finds nothing wrong")
	}
}

func TestALogThatCanBeWrittenAgainIsMended(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disk := &disk{}
	e, q := loggedOn(t, dir, disk.options(), Config{}, workqueue.Config{})
	apply(t, q, adds(3))
	disk.refuse(os.ErrPermission, nil)
	in := adds(5)
	if _, err := q.Partitions()[0].Apply(t.Context(), &in); !errors.Is(err, engine.ErrUnavailable) {
		t.Fatalf("Apply = %v, want ErrUnavailable", err)
	}
	if err := e.Check(t.Context()); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("Check = %v while the log cannot be written", err)
	}
	disk.refuse(nil, nil)
	if err := e.Check(t.Context()); err != nil {
		t.Fatalf("Check = %v, want a mended queue", err)
	}
	if n := apply(t, q, workqueue.Transaction{}).Counts.Ready; n != 3 {
		t.Errorf("%d keys, want the 3 that were acknowledged", n)
	}
	apply(t, q, adds(4))
	_, q2 := logged(t, dir, Config{})
	if n := apply(t, q2, workqueue.Transaction{}).Counts.Ready; n != 4 {
		t.Errorf("%d keys after a restart, want 4", n)
	}
}

func TestATransactionWhoseSyncFailsIsNotDenied(t *testing.T) {
	t.Parallel()
	disk := &disk{}
	_, q := loggedOn(t, t.TempDir(), disk.options(), Config{Fsync: true}, workqueue.Config{})
	disk.refuse(nil, os.ErrPermission)
	in := adds(1)
	if _, err := q.Partitions()[0].Apply(t.Context(), &in); !errors.Is(err, engine.ErrUnknown) || errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("Apply = %v, want ErrUnknown: the record may survive", err)
	}
}

// disk fails where a test has it fail. Of a write that it refuses it takes a half.
type disk struct {
	mu           sync.Mutex
	writes, sync error
}

type diskFile struct {
	journal.File
	d *disk
}

func (d *disk) options() journal.Options {
	return journal.Options{Wrap: func(f journal.File) journal.File { return diskFile{f, d} }}
}

func (d *disk) refuse(writes, sync error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writes, d.sync = writes, sync
}

func (f diskFile) Write(b []byte) (int, error) {
	f.d.mu.Lock()
	err := f.d.writes
	f.d.mu.Unlock()
	if err != nil {
		n, _ := f.File.Write(b[:len(b)/2])
		return n, err
	}
	return f.File.Write(b)
}

func (f diskFile) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return cmp.Or(f.d.sync, f.File.Sync())
}

func FuzzDecodeTransaction(f *testing.F) {
	in := adds(3)
	in.Takes = []workqueue.Take{{Holder: "w", Max: 3, For: 1}}
	in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpExpect, Key: "k", Token: 9, More: &workqueue.More{
		Owner: "u", Creates: []string{"a"}, Data: []byte("d"), Reason: "r", Barrier: workqueue.NewBarrier(workqueue.Mark{Collection: "c", Epoch: 1, RV: "2"}),
	}})
	in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpBackoffNext, Key: "id", Event: 7, Random: 0.3}, workqueue.Op{Kind: workqueue.OpAdmit, Count: -3})
	in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: "k", Limited: true, Once: 1 << 63})
	f.Add(appendTransaction(nil, 0, 5, &in))
	in.Away, in.Admitted, in.Reserved = true, 3, []workqueue.Reserved{{From: 1.5, Count: 2}}
	f.Add(appendTransaction(nil, 63, 5, &in))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, now, tx, err := decodeTransaction(b)
		if err != nil {
			return
		}
		p2, now2, again, err := decodeTransaction(appendTransaction(nil, p, now, tx))
		if err != nil || now2 != now || p2 != p {
			t.Fatalf("again: %d, %d, %v", p2, now2, err)
		}
		if diff := gocmp.Diff(again, tx, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
		_ = fmt.Sprint(tx)
	})
}
