package memory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

const name = "dev/job"

// logged opens an engine in dir as it would be after kill -9: the one before
// is never closed.
func logged(t *testing.T, dir string, cfg Config) (*Engine, engine.Queue) {
	t.Helper()
	cfg.Dir = dir
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.lock.Close(); err != nil { // as the end of the process does
		t.Fatal(err)
	}
	e.lock = nil
	q, _, err := e.Configure(t.Context(), name, workqueue.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e, q
}

func turn(t *testing.T, q engine.Queue, in workqueue.Turn) *workqueue.Result {
	t.Helper()
	r, err := q.Partitions()[0].Turn(t.Context(), &in)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func adds(n int) workqueue.Turn {
	t := workqueue.Turn{}
	for i := range n {
		t.Ops = append(t.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: "k" + strconv.Itoa(i), Level: workqueue.Level(0)})
	}
	return t
}

func TestAcknowledgedKeysSurviveKill9(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e, q := logged(t, dir, Config{})
	turn(t, q, adds(1000))
	held := turn(t, q, workqueue.Turn{Takes: []workqueue.Take{{Holder: "w", Max: 10, For: time.Hour.Microseconds()}}}).Leases
	turn(t, q, workqueue.Turn{Ops: []workqueue.Op{
		{Kind: workqueue.OpSettle, Key: held[0].Key, Token: held[0].Token, Outcome: workqueue.Forget},
		{Kind: workqueue.OpAdd, Key: "later", Delay: time.Hour.Microseconds()},
		{Kind: workqueue.OpClose},
	}})
	before := turn(t, q, workqueue.Turn{}).Counts

	e2, q2 := logged(t, dir, Config{})
	if e2.Generation() == e.Generation() {
		t.Error("a restart must be a new generation")
	}
	r := turn(t, q2, workqueue.Turn{})
	if diff := cmp.Diff(r.Counts, before); diff != "" {
		t.Errorf("counts after the restart (-got +want):\n%s", diff)
	}
	if st, _ := q2.Partitions()[0].Status(t.Context()); !st.Closed {
		t.Error("the queue was opened by the restart")
	}
	if wait := r.NextDue - r.Now; wait > 2.1e6 {
		t.Errorf("leases from before end in %d us, want 2 s: their streams are gone", wait)
	}
	next := turn(t, q2, workqueue.Turn{Takes: []workqueue.Take{{Holder: "w", Max: 1}}}).Leases[0]
	if next.Token <= held[9].Token || next.Key != "k10" {
		t.Errorf("next lease %+v: tokens grow across restarts and the order is kept", next)
	}
	// The holder from before may still settle.
	l := held[1]
	got := turn(t, q2, workqueue.Turn{Ops: []workqueue.Op{{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Done}}})
	if got.Replies[0].Status != workqueue.Settled {
		t.Errorf("settling across the restart: status %d", got.Replies[0].Status)
	}
}

func TestALogIsRebuiltExactlyAfterAnyHistory(t *testing.T) {
	t.Parallel()
	for _, compact := range []int64{1 << 30, 2000} { // never, and all the time
		t.Run(strconv.FormatInt(compact, 10), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			now := time.Unix(1_700_000_000, 0)
			cfg := Config{CompactBytes: compact, Now: func() time.Time { return now }}
			_, q := logged(t, dir, cfg)
			rng := rand.New(rand.NewPCG(7, 7))
			var held []workqueue.Lease
			for range 400 {
				in := workqueue.Turn{}
				for range rng.IntN(5) {
					key := "k" + strconv.Itoa(rng.IntN(30))
					op := workqueue.Op{Kind: workqueue.OpAdd, Key: key, Level: uint8(rng.IntN(8)), Delay: int64(rng.IntN(2)) * int64(rng.IntN(3e6)), Limited: rng.IntN(4) == 0, Trace: "00-t"}
					if rng.IntN(2) == 0 {
						op.More = &workqueue.More{Barrier: workqueue.NewBarrier(workqueue.Mark{Collection: "dev/p.v1", Epoch: 1, RV: strconv.Itoa(rng.IntN(1000))})}
					}
					if len(held) > 0 && rng.IntN(2) == 0 {
						l := held[rng.IntN(len(held))]
						op = workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Outcome(1 + rng.IntN(6)), More: &workqueue.More{Reason: "r"}}
						switch rng.IntN(4) {
						case 0:
							op = workqueue.Op{Kind: workqueue.OpSave, Key: l.Key, Token: l.Token, More: &workqueue.More{Data: []byte("data")}}
						case 1:
							op = workqueue.Op{Kind: workqueue.OpExpect, Key: l.Key, Token: l.Token, More: &workqueue.More{Owner: "u", Creates: []string{"a", "b"}}}
						}
					}
					in.Ops = append(in.Ops, op)
				}
				in.Takes = []workqueue.Take{{Holder: "w", Max: rng.IntN(3)}}
				held = append(held, turn(t, q, in).Leases...)
				now = now.Add(time.Duration(rng.IntN(900)) * time.Millisecond)
			}
			want := q.(*queue).m.Snapshot()
			m, err := replay(q.(*queue).path())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(m.Snapshot(), want, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("rebuilt (-got +want):\n%s", diff)
			}
		})
	}
}

func TestATornTailIsCutOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, q := logged(t, dir, Config{})
	turn(t, q, adds(10))
	path := q.(*queue).path()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	turn(t, q, adds(20)) // ten more
	longer, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := len(whole); cut < len(longer); cut += 7 {
		if err := os.WriteFile(path, longer[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := replay(path)
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if n := m.Counts().Ready; n != 10 {
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
	e, q := logged(t, t.TempDir(), Config{})
	_ = q.(*queue).log.f.Close()
	in := adds(1)
	for range 2 {
		if _, err := q.Partitions()[0].Turn(t.Context(), &in); !errors.Is(err, engine.ErrUnavailable) {
			t.Fatalf("Turn = %v, want ErrUnavailable", err)
		}
	}
	if err := e.Check(context.Background()); err == nil {
		t.Error("Check finds nothing wrong")
	}
}

func TestALogThatCanBeWrittenAgainIsMended(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e, q := logged(t, dir, Config{})
	turn(t, q, adds(3))
	log := q.(*queue).log
	good := log.f
	full, err := os.Open(log.path) // cannot be written
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	log.f = full
	in := adds(5)
	if _, err := q.Partitions()[0].Turn(t.Context(), &in); !errors.Is(err, engine.ErrUnavailable) {
		t.Fatalf("Turn = %v, want ErrUnavailable", err)
	}
	if err := e.Check(t.Context()); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("Check = %v while the log cannot be written", err)
	}
	log.f = good
	if _, err := good.WriteString("half a rec"); err != nil { // what a full disk took of the record
		t.Fatal(err)
	}
	if err := e.Check(t.Context()); err != nil {
		t.Fatalf("Check = %v, want a mended queue", err)
	}
	if n := turn(t, q, workqueue.Turn{}).Counts.Ready; n != 3 {
		t.Errorf("%d keys, want the 3 that were acknowledged", n)
	}
	turn(t, q, adds(4))
	_, q2 := logged(t, dir, Config{})
	if n := turn(t, q2, workqueue.Turn{}).Counts.Ready; n != 4 {
		t.Errorf("%d keys after a restart, want 4", n)
	}
}

func TestATurnWhoseSyncFailsIsNotDenied(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe() // takes writes and cannot be synced
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, q := logged(t, t.TempDir(), Config{Fsync: true})
	_ = q.(*queue).log.f.Close()
	q.(*queue).log.f = w
	in := adds(1)
	if _, err := q.Partitions()[0].Turn(t.Context(), &in); !errors.Is(err, engine.ErrUnknown) || errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("Turn = %v, want ErrUnknown: the record may survive", err)
	}
}

func FuzzDecodeTurn(f *testing.F) {
	in := adds(3)
	in.Takes = []workqueue.Take{{Holder: "w", Max: 3, For: 1}}
	in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpExpect, Key: "k", Token: 9, More: &workqueue.More{
		Owner: "u", Creates: []string{"a"}, Data: []byte("d"), Reason: "r", Barrier: workqueue.NewBarrier(workqueue.Mark{Collection: "c", Epoch: 1, RV: "2"}),
	}})
	f.Add(appendTurn(nil, 5, &in))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		now, turn, err := decodeTurn(b)
		if err != nil {
			return
		}
		now2, again, err := decodeTurn(appendTurn(nil, now, turn))
		if err != nil || now2 != now {
			t.Fatalf("again: %d, %v", now2, err)
		}
		if diff := cmp.Diff(again, turn, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
		_ = fmt.Sprint(turn)
	})
}
