package redis_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

// Lua passes at most 8,000 arguments at once.
func TestTransactionsOfAnySizeAreApplied(t *testing.T) {
	t.Parallel()
	srv := start(t)
	q := configure(t, newEngine(t, redis.Config{URL: srv.URL()}), workqueue.Config{})
	const n = 20_001
	var in workqueue.Transaction
	for i := range n {
		op := workqueue.Op{Kind: workqueue.OpAdd, Key: "key-" + strconv.Itoa(i), Level: workqueue.Level(i % 3)}
		if i%7 == 0 {
			op.Trace = trace
		}
		in.Ops = append(in.Ops, op)
	}
	if r := apply(t, q, in); r.Counts.Ready != n || r.Added != n {
		t.Fatalf("counts %+v, %d added: want %d ready", r.Counts, r.Added, n)
	}
	r := apply(t, q, workqueue.Transaction{Takes: []workqueue.Take{{Holder: "a", Max: 11_000}, {Holder: "b", Max: n}}})
	if len(r.Leases) != n || r.Counts.Processing != n {
		t.Fatalf("%d leases, counts %+v: want %d", len(r.Leases), r.Counts, n)
	}
	in.Ops = in.Ops[:0]
	seen := map[string]bool{}
	for i, l := range r.Leases {
		seen[l.Key] = true
		if i > 0 && l.Token != r.Leases[i-1].Token+1 || l.Take != min(i/11_000, 1) {
			t.Fatalf("lease %d is of take %d with token %d after %d", i, l.Take, l.Token, r.Leases[i-1].Token)
		}
		in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Done})
	}
	if len(seen) != n {
		t.Errorf("%d keys were leased, want %d", len(seen), n)
	}
	if r := apply(t, q, in); r.Counts != (workqueue.Counts{}) {
		t.Errorf("counts %+v: want none", r.Counts)
	}
	nothingLeft(t, raw(t, srv))
}

func TestKeysAndTextsOfAnyBytesComeBack(t *testing.T) {
	t.Parallel()
	srv := start(t)
	q := configure(t, newEngine(t, redis.Config{URL: srv.URL()}), workqueue.Config{})
	model := workqueue.New(workqueue.Config{})
	step := func(in workqueue.Transaction) *workqueue.Result {
		t.Helper()
		got := apply(t, q, in)
		if diff := cmp.Diff(got, model.Apply(got.Now, &in), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("transaction %+v (-engine +oracle):\n%s", in, diff)
		}
		return got
	}
	odd := []string{"\x00", "\x00L", "a\nb", " ", "-inf", "nan", "1e400", "日本", "\xff\xfe", strings.Repeat("\xff", 66), strings.Repeat("k", workqueue.MaxKeyLen), "i", "n"}
	more := &workqueue.More{Barrier: barrier}
	for _, text := range odd {
		for _, key := range odd {
			step(workqueue.Transaction{Ops: []workqueue.Op{
				{Kind: workqueue.OpAdd, Key: key, Level: 3, Trace: text, More: more},
				{Kind: workqueue.OpAdd, Key: key + "2", Level: 4, Delay: 1},
				{Kind: workqueue.OpBackoffNext, Key: key},
			}})
		}
		for range 3 {
			var in workqueue.Transaction
			for _, l := range step(workqueue.Transaction{Takes: []workqueue.Take{{Holder: text, Max: 10}, {Holder: text + "2", Max: 100}}}).Leases {
				in.Ops = append(in.Ops,
					workqueue.Op{Kind: workqueue.OpSave, Key: l.Key, Token: l.Token, More: &workqueue.More{Data: []byte(text)}},
					workqueue.Op{Kind: workqueue.OpInspect, Key: l.Key},
					workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Release, More: &workqueue.More{Reason: text}},
					workqueue.Op{Kind: workqueue.OpInspect, Key: l.Key})
			}
			step(in)
		}
	}
}

func TestManyGivenUpPlacesAreSkippedOverSeveralTransactions(t *testing.T) {
	t.Parallel()
	srv := start(t)
	q := configure(t, newEngine(t, redis.Config{URL: srv.URL()}), workqueue.Config{})
	const n = 5000
	var low, high workqueue.Transaction
	for i := range n {
		key := "key-" + strconv.Itoa(i)
		low.Ops = append(low.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: key})
		high.Ops = append(high.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: key, Level: 7}, workqueue.Op{Kind: workqueue.OpDelete, Key: key})
	}
	apply(t, q, low)
	apply(t, q, high)
	apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAdd, Key: "last"}}})
	for range 10 {
		r := apply(t, q, take(1))
		if len(r.Leases) == 1 {
			if r.Leases[0].Key != "last" || r.Counts.Ready != 0 {
				t.Errorf("lease %+v, counts %+v", r.Leases[0], r.Counts)
			}
			apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpSettle, Key: "last", Token: r.Leases[0].Token, Outcome: workqueue.Done}}})
			nothingLeft(t, raw(t, srv))
			return
		}
		if r.NextDue != r.Now {
			t.Fatalf("nothing leased and the next transaction due in %d us, want at once", r.NextDue-r.Now)
		}
	}
	t.Error("the last key is never reached")
}
