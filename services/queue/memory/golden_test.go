package memory

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/goldentest"
)

// history is a short life of a queue that uses every kind of record and every
// field of a key; between is called when half of it is logged.
func history(t *testing.T, dir string, between func(q *queue)) *queue {
	t.Helper()
	now := time.Unix(1_700_000_000, 0)
	limiter := backoff.Controller()
	cfg := workqueue.Config{Partitions: 2, LeaseFor: 10 * time.Second, MaxDeliveries: 3, MaxRetries: 5, Limiter: &limiter}
	e, q := loggedAs(t, dir, Config{CompactBytes: 1 << 30, Now: func() time.Time { return now }}, cfg)
	parts := q.(*queue).parts
	do := func(p int, in workqueue.Transaction) *workqueue.Result {
		t.Helper()
		in.Away = p > 0
		if in.Away {
			in.Admitted = 100
			for range cfg.WithDefaults().Limiter.Buckets() {
				in.Reserved = append(in.Reserved, workqueue.Reserved{From: float64(now.UnixMicro()) + 0.5, Count: 9})
			}
		}
		now = now.Add(time.Second)
		r, err := parts[p].Apply(t.Context(), &in)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	take := []workqueue.Take{{Holder: "worker-1", Max: 4, For: 5e6}}
	marks := workqueue.NewBarrier(workqueue.Mark{Collection: "pods", Epoch: 3, RV: "4711"})
	for p := range parts {
		do(p, workqueue.Transaction{Ops: []workqueue.Op{
			{Kind: workqueue.OpAdd, Key: "default/a", Level: workqueue.Level(0), Trace: "00-trace-01", More: &workqueue.More{Barrier: marks}},
			{Kind: workqueue.OpAdd, Key: "default/b", Level: workqueue.Level(50)},
			{Kind: workqueue.OpAdd, Key: "default/c", Level: workqueue.Level(0), Limited: true, Once: 77},
			{Kind: workqueue.OpAdd, Key: "default/d", Delay: 3600e6, Last: true},
			{Kind: workqueue.OpAdd, Key: "default/dead", Level: workqueue.Level(100)},
			{Kind: workqueue.OpBackoffNext, Key: "pod-1", Event: now.UnixMicro() - 5, Random: 0.25},
		}})
		held := do(p, workqueue.Transaction{Takes: take}).Leases
		ops := []workqueue.Op{{Kind: workqueue.OpAdd, Key: "default/a", Level: workqueue.Level(20)}}
		for _, l := range held {
			switch l.Key {
			case "default/a":
				ops = append(
					ops,
					workqueue.Op{Kind: workqueue.OpExpect, Key: l.Key, Token: l.Token, More: &workqueue.More{Owner: "uid", Creates: []string{"x", "y"}, Deletes: []string{"z"}}},
					workqueue.Op{Kind: workqueue.OpSave, Key: l.Key, Token: l.Token, More: &workqueue.More{Data: []byte("state")}},
					workqueue.Op{Kind: workqueue.OpExtend, Key: l.Key, Token: l.Token, For: 2e6, Shorten: true, Known: l.Deadline},
				)
			case "default/b":
				ops = append(ops, workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Retry, Relevel: true, Level: 1, More: &workqueue.More{Wrote: marks, Reason: "conflict"}})
			case "default/dead":
				ops = append(ops, workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Dead, More: &workqueue.More{Reason: "bad spec"}})
			}
		}
		do(p, workqueue.Transaction{Ops: ops, KeepLeases: true})
	}
	between(q.(*queue))
	cfg.Dispatch = &workqueue.Rate{QPS: 50, Burst: 7}
	if _, _, err := e.Configure(t.Context(), name, cfg); err != nil {
		t.Fatal(err)
	}
	now = now.Add(20 * time.Second)
	for p := range parts {
		do(p, workqueue.Transaction{}) // the leases have expired
		do(p, workqueue.Transaction{Takes: take, Ops: []workqueue.Op{
			{Kind: workqueue.OpAdd, Key: "default/e", Level: workqueue.Level(0)}, {Kind: workqueue.OpReserve, Count: 3}, {Kind: workqueue.OpPause},
		}})
	}
	return q.(*queue)
}

// inHex is a log with a record a line.
func inHex(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for len(b) > 0 {
		n := 12 + int(binary.LittleEndian.Uint32(b[4:]))
		out.WriteString(hex.EncodeToString(b[:n]) + "\n")
		b = b[n:]
	}
	return out.String()
}

func inJSON(t *testing.T, ms []*workqueue.Machine) string {
	t.Helper()
	var out strings.Builder
	for _, m := range ms {
		b, err := json.MarshalIndent(m.Snapshot(), "", " ")
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(b, '\n'))
	}
	return out.String()
}

func TestTheBytesOfALogStayTheSame(t *testing.T) {
	t.Parallel()
	for golden, rewrite := range map[string]bool{"log.hex": false, "rewritten.hex": true} {
		t.Run(golden, func(t *testing.T) {
			t.Parallel()
			q := history(t, t.TempDir(), func(q *queue) {
				if rewrite {
					if err := q.log.Rewrite(q.snapshot); err != nil {
						t.Fatal(err)
					}
				}
			})
			goldentest.Compare(t, golden, inHex(t, q.path()))
			var ms []*workqueue.Machine
			for _, p := range q.parts {
				ms = append(ms, p.m)
			}
			goldentest.Compare(t, "state.json", inJSON(t, ms))
		})
	}
}

func TestLogsOfReleasesBeforeAreRead(t *testing.T) {
	t.Parallel()
	logs, err := filepath.Glob("testdata/*.hex")
	if err != nil || len(logs) == 0 {
		t.Fatalf("logs to read: %v, %v", logs, err)
	}
	for _, golden := range logs {
		t.Run(filepath.Base(golden), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			b, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			path := filepath.Join(dir, fileName(name)+logSuffix)
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			ms, end, err := replay(path)
			if err != nil || end.At != int64(len(b)) {
				t.Fatalf("read up to %+v: %v", end, err)
			}
			goldentest.Compare(t, "state.json", inJSON(t, ms))
			e, err := New(Config{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			if _, err := e.Open(t.Context(), name); err != nil {
				t.Error(err)
			}
		})
	}
}
