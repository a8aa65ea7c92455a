package memory

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/journal"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// headLen is how much of a record comes before its body.
const headLen = 12

func add(key string) workqueue.Transaction {
	return workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAdd, Key: key, Level: workqueue.Level(0)}}}
}

func TestPartitionsSurviveKill9EachWithItsOwnKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := workqueue.Config{Partitions: 5, Dispatch: &workqueue.Rate{QPS: 1, Burst: 9}}
	_, q := loggedAs(t, dir, Config{}, cfg)
	for p, part := range q.Partitions() {
		for i := range p + 1 {
			in := add(fmt.Sprintf("p%d-%d", p, i))
			in.Away = p > 0
			in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpBackoffNext, Key: "id", Random: 0.5})
			if _, err := part.Apply(t.Context(), &in); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, q = loggedAs(t, dir, Config{}, cfg)
	for p, part := range q.Partitions() {
		r, err := part.Apply(t.Context(), &workqueue.Transaction{
			Away: p > 0, Admitted: 9, Takes: []workqueue.Take{{Holder: "w", Max: 9}},
			Ops: []workqueue.Op{{Kind: workqueue.OpBackoffGet, Key: "id"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Leases) != p+1 || r.Leases[p].Key != fmt.Sprintf("p%d-%d", p, p) {
			t.Errorf("partition %d leased %v", p, r.Leases)
		}
		if got := r.Replies[0].Backoff.Delay; got != 10e6<<p {
			t.Errorf("partition %d: back-off %d", p, got)
		}
	}
}

// damage puts a wrong byte in the middle of a log of 30 transactions, and says how
// long it was and how many transactions come before.
func damage(t *testing.T, dir string) (path string, before int) {
	t.Helper()
	_, q := logged(t, dir, Config{})
	path = q.(*queue).path()
	var at int64
	for i := range 30 {
		if i == 17 {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			at = info.Size()
		}
		apply(t, q, add("k"+strconv.Itoa(i)))
	}
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all[at+headLen+5] ^= 0x10
	if err := os.WriteFile(path, all, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, 17
}

func TestDamageInTheMiddleOfALogIsKeptAsideAndTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, before := damage(t, dir)
	broken, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var told bytes.Buffer
	_, q := logged(t, dir, Config{Log: slog.New(slog.NewTextHandler(&told, nil))})
	if n := apply(t, q, workqueue.Transaction{}).Counts.Ready; n != before {
		t.Errorf("%d keys, want the %d from before the damage", n, before)
	}
	if !strings.Contains(told.String(), "level=ERROR") || !strings.Contains(told.String(), "damaged") {
		t.Errorf("told: %s", told.String())
	}
	kept, err := filepath.Glob(path + ".damaged-*")
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept aside: %v, %v", kept, err)
	}
	if got, err := os.ReadFile(kept[0]); err != nil || !bytes.Equal(got, broken) {
		t.Errorf("what was kept aside is not the damaged log (%v)", err)
	}
	apply(t, q, add("new"))
	if _, q = logged(t, dir, Config{}); apply(t, q, workqueue.Transaction{}).Counts.Ready != before+1 {
		t.Error("the new log does not hold what came after")
	}
}

func TestATornTailIsToldQuietly(t *testing.T) {
	t.Parallel()
	for name, tail := range map[string][]byte{
		"part of a record":    append([]byte(format), 200, 0, 0, 0, 1, 2, 3, 4, 't', 'x'),
		"zeros":               make([]byte, 5000),
		"anything":            bytes.Repeat([]byte("garbage "+string(format)), 300_000),
		"less than a head":    []byte(format),
		"a length of nothing": append([]byte(format), make([]byte, 40)...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			_, q := logged(t, dir, Config{})
			apply(t, q, adds(7))
			f, err := os.OpenFile(q.(*queue).path(), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write(tail); err != nil {
				t.Fatal(err)
			}
			_ = f.Close()
			var told bytes.Buffer
			_, q = logged(t, dir, Config{Log: slog.New(slog.NewTextHandler(&told, nil))})
			if n := apply(t, q, workqueue.Transaction{}).Counts.Ready; n != 7 {
				t.Errorf("%d keys, want 7", n)
			}
			if !strings.Contains(told.String(), "level=INFO") || strings.Contains(told.String(), "level=ERROR") {
				t.Errorf("told: %s", told.String())
			}
			if kept, _ := filepath.Glob(filepath.Join(dir, "*damaged*")); kept != nil {
				t.Errorf("kept aside: %v", kept)
			}
		})
	}
}

func TestALogWithADamagedSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, q := logged(t, dir, Config{})
	apply(t, q, adds(3))
	path := q.(*queue).path()
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all[headLen+4] ^= 1
	if err := os.WriteFile(path, all, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Dir: dir}); !errors.Is(err, os.ErrInvalid) || !strings.Contains(err.Error(), filepath.Base(path)) {
		t.Errorf("New = %v, want a refusal naming the log", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, all) {
		t.Errorf("the refused log was changed (%v)", err)
	}
}

func TestDurabilityThatMemoryCannotKeepIsRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		dir  bool
		want workqueue.Durability
		ok   bool
	}{
		{false, workqueue.Memory, true},
		{false, workqueue.Fsync, false},
		{false, workqueue.Replicated, false},
		{true, workqueue.Fsync, true},
		{true, workqueue.Replicated, false},
	} {
		cfg := Config{}
		if tc.dir {
			cfg.Dir = t.TempDir()
		}
		e, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := e.Configure(t.Context(), name, workqueue.Config{}); err != nil {
			t.Fatal(err)
		}
		if _, _, err = e.Configure(t.Context(), name, workqueue.Config{Durability: tc.want}); (err == nil) != tc.ok || err != nil && !errors.Is(err, engine.ErrDurability) {
			t.Errorf("%+v: Configure = %v", tc, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// syncs is a disk that says when it is synced, and waits for leave.
type syncs struct {
	journal.File
	began, leave chan struct{}
	n            *atomic.Int64
}

func (s syncs) Sync() error {
	if s.n.Add(1) > 1 { // the first is of the log's beginning
		s.began <- struct{}{}
		<-s.leave
	}
	return s.File.Sync()
}

func TestTransactionsThatWaitForTheDiskShareASync(t *testing.T) {
	t.Parallel()
	s := syncs{began: make(chan struct{}, 100), leave: make(chan struct{}), n: new(atomic.Int64)}
	wrap := func(f journal.File) journal.File { s.File = f; return s }
	_, q := loggedOn(t, t.TempDir(), journal.Options{Wrap: wrap}, Config{}, workqueue.Config{Partitions: 8, Durability: workqueue.Fsync})
	var wg sync.WaitGroup
	answered := make(chan int, 8)
	begin := func(i int) {
		wg.Go(func() {
			in := add("k")
			in.Away = i > 0
			if _, err := q.Partitions()[i].Apply(t.Context(), &in); err != nil {
				t.Error(err)
			}
			answered <- i
		})
	}
	begin(0)
	<-s.began // the disk is busy while every other partition logs a transaction: none is answered
	for i := 1; i < 8; i++ {
		begin(i)
	}
	for logged := 0; logged < 8; {
		logged = 0
		for _, p := range q.(*queue).parts {
			p.mu.Lock()
			logged += p.m.Counts().Ready
			p.mu.Unlock()
		}
	}
	if n := len(answered); n != 0 {
		t.Errorf("%d transactions were answered before the disk had them", n)
	}
	close(s.leave) // one more sync of everything logged so far answers the rest
	wg.Wait()
	if n := s.n.Load(); n != 3 {
		t.Errorf("the log was synced %d times, want 3: as it began, for the first transaction and for the others", n)
	}
}

func TestALogIsRewrittenWhileTransactionsGoOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := workqueue.Config{Partitions: 2, Durability: workqueue.Fsync}
	e, q := loggedAs(t, dir, Config{CompactBytes: 4 << 10}, cfg)
	log, err := os.Open(q.(*queue).path()) // open to the end, or a later file might get its inode
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	before, err := log.Stat()
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 300
	var wg sync.WaitGroup
	for i, p := range q.Partitions() {
		wg.Go(func() {
			for n := range rounds {
				in := workqueue.Transaction{Away: i > 0, Takes: []workqueue.Take{{Holder: "w", Max: 3}}}
				for k := range 20 {
					in.Ops = append(in.Ops, add(fmt.Sprintf("%d-%d-%d", i, n, k)).Ops...)
				}
				r, err := p.Apply(t.Context(), &in)
				if err != nil {
					t.Error(err)
					return
				}
				end := workqueue.Transaction{Away: i > 0}
				for _, l := range r.Leases {
					end.Ops = append(end.Ops, workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Forget})
				}
				if _, err := p.Apply(t.Context(), &end); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	mq := q.(*queue)
	mq.work.Wait()
	if now, err := os.Stat(mq.path()); err != nil || os.SameFile(before, now) {
		t.Errorf("the log was never rewritten: %v", err)
	}
	var want []*workqueue.Snapshot
	for _, p := range mq.parts {
		want = append(want, p.m.Snapshot())
	}
	ms, end, err := replay(mq.path())
	if err != nil || end.At != end.Size {
		t.Fatalf("replay up to %+v: %v", end, err)
	}
	for i, m := range ms {
		if n := m.Counts().Ready; n != rounds*17 {
			t.Errorf("partition %d: %d keys, want %d", i, n, rounds*17)
		}
		if !cmp.Equal(m.Snapshot(), want[i]) {
			t.Errorf("partition %d is rebuilt otherwise", i)
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

func TestAPageOfKeysIsBoundedWork(t *testing.T) {
	t.Parallel()
	e, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	q, _, err := e.Configure(t.Context(), name, workqueue.Config{})
	if err != nil {
		t.Fatal(err)
	}
	const n = 3*workqueue.PageWork + 10
	apply(t, q, adds(n))
	p := q.Partitions()[0]
	page, next, err := p.Items(t.Context(), workqueue.StateDead, "", 100)
	if err != nil || len(page) != 0 || next == "" {
		t.Fatalf("the first page of no dead keys = %d keys, next %q, %v: want to be asked again", len(page), next, err)
	}
	seen := map[string]int{}
	for cursor, first := "", true; first || cursor != ""; first = false {
		page, cursor, err = p.Items(t.Context(), workqueue.Ready, cursor, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range page {
			seen[it.Key]++
		}
		// Keys come and go meanwhile.
		gone := apply(t, q, workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 20}}}).Leases
		in := workqueue.Transaction{}
		for _, l := range gone {
			in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Forget})
		}
		apply(t, q, in)
		apply(t, q, add("new-"+strconv.Itoa(len(seen))))
	}
	for i := n / 2; i < n; i++ {
		if c := seen["k"+strconv.Itoa(i)]; c != 1 {
			t.Fatalf("k%d was met %d times, want once", i, c)
		}
	}
	for _, cursor := range []string{"x", "-1", "0", "99999999999"} {
		if _, _, err := p.Items(t.Context(), workqueue.Ready, cursor, 1); !errors.Is(err, engine.ErrCursor) {
			t.Errorf("cursor %q: %v, want ErrCursor", cursor, err)
		}
	}
}

func TestAfterCloseNothingIsAcknowledged(t *testing.T) {
	t.Parallel()
	e, q := logged(t, t.TempDir(), Config{})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	in := add("k")
	if _, err := q.Partitions()[0].Apply(t.Context(), &in); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("Apply = %v, want ErrUnavailable", err)
	}
}

func FuzzReplay(f *testing.F) {
	dir := f.TempDir()
	now := time.Unix(1_700_000_000, 0)
	e, err := New(Config{Dir: dir, Now: func() time.Time { return now }})
	if err != nil {
		f.Fatal(err)
	}
	q, _, err := e.Configure(f.Context(), name, workqueue.Config{Partitions: 2})
	if err != nil {
		f.Fatal(err)
	}
	in := adds(3)
	in.Takes = []workqueue.Take{{Holder: "w", Max: 1}}
	in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpBackoffNext, Key: "id"})
	if _, err := q.Partitions()[0].Apply(f.Context(), &in); err != nil {
		f.Fatal(err)
	}
	if err := q.(*queue).log.Rewrite(q.(*queue).snapshot); err != nil {
		f.Fatal(err)
	}
	if _, err := q.Partitions()[1].Apply(f.Context(), &in); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(q.(*queue).path())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole, 0, byte(0))
	f.Add(whole[:len(whole)-3], len(whole)/2, byte(1))
	f.Add(whole, len(whole)/3, byte(0x80))
	f.Fuzz(func(t *testing.T, log []byte, at int, flip byte) {
		if at >= 0 && at < len(log) {
			log[at] ^= flip
		}
		path := filepath.Join(t.TempDir(), "x"+logSuffix)
		if err := os.WriteFile(path, log, 0o600); err != nil {
			t.Fatal(err)
		}
		ms, end, err := replay(path)
		if err != nil {
			return
		}
		if end.At > int64(len(log)) || len(ms) == 0 {
			t.Fatalf("%d partitions up to byte %d of %d", len(ms), end.At, len(log))
		}
	})
}

func FuzzDecodeItems(f *testing.F) {
	m := workqueue.New(workqueue.Config{})
	in := adds(3)
	in.Takes = []workqueue.Take{{Holder: "w", Max: 1}}
	in.Ops = append(in.Ops,
		workqueue.Op{Kind: workqueue.OpAdd, Key: "k1", Limited: true, Once: 9, Trace: "00", More: &workqueue.More{Barrier: workqueue.NewBarrier(workqueue.Mark{Collection: "c", Epoch: 1, RV: "2"})}},
		workqueue.Op{Kind: workqueue.OpAdd, Key: "k9", Delay: 7},
	)
	r := m.Apply(1e15, &in)
	m.Apply(1e15, &workqueue.Transaction{Ops: []workqueue.Op{
		{Kind: workqueue.OpExpect, Key: "k0", Token: r.Leases[0].Token, More: &workqueue.More{Owner: "u", Creates: []string{"a"}}},
		{Kind: workqueue.OpSave, Key: "k0", Token: r.Leases[0].Token, More: &workqueue.More{Data: []byte("d")}},
		{Kind: workqueue.OpAdd, Key: "k0"},
	}})
	f.Add(appendItems(nil, 1, m.Snapshot().Items))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, items, err := decodeItems(b)
		if err != nil {
			return
		}
		p2, again, err := decodeItems(appendItems(nil, p, items))
		if err != nil || p2 != p {
			t.Fatalf("again: partition %d of %d, %v", p2, p, err)
		}
		if diff := cmp.Diff(again, items); diff != "" {
			t.Fatal(diff)
		}
	})
}
