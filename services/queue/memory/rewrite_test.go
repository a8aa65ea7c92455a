package memory

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/journal"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

func TestADirectoryIsSyncedAfterItsLogWasReplaced(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		durability workqueue.Durability
		fails      error
		after      error // of transactions
	}{
		"memory": {},
		"fsync":  {durability: workqueue.Fsync},
		// The log is whole: what the queue promises does not need the directory.
		"memory, and the disk fails": {fails: os.ErrPermission},
		"fsync, and the disk fails":  {durability: workqueue.Fsync, fails: os.ErrPermission, after: engine.ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var mq *queue
			var before os.FileInfo
			synced := 0
			disk := journal.Options{SyncDir: func(of string) error {
				if mq == nil { // the log is new
					return nil
				}
				now, err := os.Stat(mq.path())
				if err != nil || of != dir || os.SameFile(before, now) {
					t.Errorf("%s is synced before the log is replaced: %v", of, err)
				}
				synced++
				return c.fails
			}}
			_, q := loggedOn(t, dir, disk, Config{}, workqueue.Config{Durability: c.durability})
			var err error
			if before, err = os.Stat(q.(*queue).path()); err != nil {
				t.Fatal(err)
			}
			mq = q.(*queue)
			mq.rewrite()
			if synced != 1 {
				t.Errorf("the directory was synced %d times, want once", synced)
			}
			in := add("k")
			if _, err := q.Partitions()[0].Apply(t.Context(), &in); !errors.Is(err, c.after) {
				t.Errorf("a transaction after the rewriting: %v, want %v", err, c.after)
			}
		})
	}
}

func TestASnapshotHoldsTheLastHolders(t *testing.T) {
	t.Parallel()
	item := workqueue.SavedItem{Key: "k", State: workqueue.StateDead, Reason: "r", Holders: []string{"a", "b"}}
	_, got, err := decodeItems(appendItems(nil, 0, []workqueue.SavedItem{item}))
	if err != nil || len(got) != 1 || !slices.Equal(got[0].Holders, item.Holders) {
		t.Errorf("read back %+v, %v, want %+v", got, err, item)
	}
}

// While one partition after the other is copied, the others go on: what they log
// lies between, in front of a partition that holds it already or behind.
func TestTransactionsBetweenThePartitionsOfASnapshotCountOnce(t *testing.T) {
	t.Parallel()
	cfg := workqueue.Config{Partitions: 3, Dispatch: &workqueue.Rate{QPS: 1, Burst: 9}}
	e, q := loggedAs(t, t.TempDir(), Config{}, cfg)
	mq := q.(*queue)
	do := func(p int, key string) {
		t.Helper()
		in := add(key)
		in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpBackoffNext, Key: "id", Random: 0.5})
		in.Away = p > 0
		if _, err := mq.parts[p].Apply(t.Context(), &in); err != nil {
			t.Fatal(err)
		}
	}
	err := mq.log.Rewrite(func(w *journal.Writer) error {
		for p := range mq.parts {
			records, err := mq.parts[p].save(nil)
			if p == 0 {
				w.Drop(mq.log.End())
			}
			if err := errors.Join(err, w.Keep(mq.log.End()), w.Write(records)); err != nil {
				return err
			}
			for other := range mq.parts {
				do(other, fmt.Sprintf("k%d", p))
			}
			cfg.Dispatch = &workqueue.Rate{QPS: float64(p + 2), Burst: 9}
			if _, _, err := e.Configure(t.Context(), name, cfg); err != nil {
				return err
			}
		}
		return w.Append(record(recWhole, func(b []byte) []byte { return b }))
	})
	if err != nil {
		t.Fatal(err)
	}
	do(1, "last")
	ms, end, err := replay(mq.path())
	if err != nil || end.At != end.Size {
		t.Fatalf("replay up to %+v: %v", end, err)
	}
	for p, m := range ms {
		if diff := cmp.Diff(m.Snapshot(), mq.parts[p].m.Snapshot(), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("partition %d rebuilt (-got +want):\n%s", p, diff)
		}
	}
}

// BenchmarkSave is the copying of a partition of 100,000 keys to memory, for
// which its transactions wait while the log is rewritten.
func BenchmarkSave(b *testing.B) {
	e, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	q, _, err := e.Configure(b.Context(), name, workqueue.Config{})
	if err != nil {
		b.Fatal(err)
	}
	p := q.(*queue).parts[0]
	for i := 0; i < 100_000; {
		in := workqueue.Transaction{}
		for range 1000 {
			in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: fmt.Sprintf("default/some-job-%d", i), Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", More: &workqueue.More{
				Barrier: workqueue.NewBarrier(workqueue.Mark{Collection: "dev/pods.v1", Epoch: 1, RV: "123456"}),
			}})
			i++
		}
		if _, err := p.Apply(b.Context(), &in); err != nil {
			b.Fatal(err)
		}
	}
	records, err := p.save(nil)
	if err != nil {
		b.Fatal(err)
	}
	cpu := cpuTime(b)
	for b.Loop() {
		if records, err = p.save(records[:0]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/1000/float64(b.N), "cpu-ms")
	b.ReportMetric(float64(len(records)), "bytes")
}

// cpuTime is what the process used: steadier than the clock where others use the
// machine.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
