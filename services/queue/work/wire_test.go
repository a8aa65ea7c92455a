package work

import (
	"bytes"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/deltaplane/deltaplane/core/expectations"
	"github.com/deltaplane/deltaplane/core/workqueue"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

func parse[T proto.Message](t testing.TB, e *wire.Encoded, to T) T {
	t.Helper()
	if err := proto.Unmarshal(*e.Buf, to); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestCompactLeasesAreWhatTheContractSays(t *testing.T) {
	t.Parallel()
	now := int64(1_700_000_000_000_000)
	leases := []workqueue.Lease{
		{Key: "a", Token: 7, Deadline: now + 30e6, Level: 4},
		{
			Key: strings.Repeat("long", 200), Token: 1 << 52, Deadline: now + 5, AddedAt: now - 9, ReadyAt: now - 3, Level: 0, Attempt: 3, Requeues: 12,
			Barrier: workqueue.NewBarrier(workqueue.Mark{Collection: "dev/pods.v1", Epoch: 3, RV: "42"}, workqueue.Mark{Collection: "dev/jobs.v1", RV: "1"}),
			Traces:  []string{"00-a", "00-b"}, State: bytes.Repeat([]byte{0xff}, 20_000),
			Expect: &expectations.Set{Owner: "uid", Creates: []string{"x", "y"}, Deletes: []string{"z"}, Token: 7, StoredAt: now},
		},
	}
	var o outbox
	for i := range leases {
		o.encode("dev/job", &leases[i], now, leases[i].Deadline+5)
	}
	want := &queuev1.Assign{Queue: "dev/job"}
	for i := range leases {
		l := wire.Lease("", &leases[i], now, leases[i].Deadline+5)
		l.DeadlineUs, l.RemainingUs, l.AddedUs, l.ReadyUs = leases[i].Deadline, leases[i].Deadline-now, leases[i].AddedAt, leases[i].ReadyAt
		l.Deadline, l.Remaining, l.AddedAt, l.ReadyAt = nil, nil, nil, nil
		want.Leases = append(want.Leases, l)
	}
	var sent capture
	if err := o.send(&sent); err != nil || len(sent.all) != 1 {
		t.Fatalf("%d messages, %v", len(sent.all), err)
	}
	got := parse(t, sent.all[0].(*wire.Encoded), &queuev1.WorkResponse{}).GetAssign()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// capture is a Work stream that keeps what is sent.
type capture struct {
	queuev1.QueueService_WorkServer
	all []any
}

func (c *capture) SendMsg(m any) error { c.all = append(c.all, m); return nil }

func TestCompactAssignmentsNameTheirQueueAndFit(t *testing.T) {
	t.Parallel()
	var o outbox
	big := workqueue.Lease{Key: "k", State: make([]byte, 4096)}
	for range 600 {
		o.encode("a", &big, 0, 0)
	}
	o.encode("b", &workqueue.Lease{Key: "k"}, 0, 0)
	o.encode("a", &workqueue.Lease{Key: "k"}, 0, 0)
	var sent capture
	if err := o.send(&sent); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, m := range sent.all {
		a := parse(t, m.(*wire.Encoded), &queuev1.WorkResponse{}).GetAssign()
		if size := proto.Size(a); size > 2<<20 {
			t.Errorf("an assignment of %d bytes", size)
		}
		counts[a.GetQueue()] += len(a.GetLeases())
	}
	if counts["a"] != 601 || counts["b"] != 1 || o.bytes < 600*4096 {
		t.Errorf("leases by queue %v, %d bytes", counts, o.bytes)
	}
	if o.reset(); !o.empty() || o.bytes != 0 {
		t.Error("not empty after reset")
	}
}

func TestCompactSettledSaysMoreOnlyWhereThereIsMore(t *testing.T) {
	t.Parallel()
	p := &session.Plan{}
	for _, k := range []string{"a", "b", "c"} {
		p.Add("q", workqueue.Op{Kind: workqueue.OpSettle, Key: k, Token: 5})
	}
	out := &session.SettleResults{Plan: p, Rows: []session.Row{{Status: workqueue.Settled}, {Status: workqueue.Requeued, Requeues: 2, ReadyAt: 1e6}, {Status: workqueue.Lost}}}
	got := parse(t, settledMessage(9, out, true), &queuev1.WorkResponse{}).GetSettled()
	want := &queuev1.Settled{
		RequestId: 9,
		Statuses: []queuev1.SettleStatus{
			queuev1.SettleStatus_SETTLE_STATUS_SETTLED, queuev1.SettleStatus_SETTLE_STATUS_REQUEUED, queuev1.SettleStatus_SETTLE_STATUS_LOST,
		},
		Results: []*queuev1.SettleResult{{Key: "b", Token: 5, Status: queuev1.SettleStatus_SETTLE_STATUS_REQUEUED, NumRequeues: 2, ReadyAt: wire.Stamp(1e6)}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func anySettlement(rnd *rand.Rand) *queuev1.Settlement {
	s := &queuev1.Settlement{
		Queue: "q" + strconv.Itoa(rnd.IntN(2)*rnd.IntN(2)), Key: "k" + strconv.Itoa(rnd.IntN(50)), Token: 1 + rnd.Uint64N(1<<53),
		Outcome: queuev1.Outcome(1 + rnd.IntN(6)),
	}
	switch rnd.IntN(20) {
	case 0:
		s.Outcome, s.Delay = queuev1.Outcome_OUTCOME_RETRY_AFTER, durationpb.New(time.Second)
	case 1:
		s.Reason = "because"
	case 2:
		s.ReadAt = []*deltav1.CollectionRevision{{Collection: "dev/pods.v1", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "5"}}}
	case 3:
		s.Priority = wrapperspb.Int32(2)
	case 4:
		s.Key = ""
	case 5:
		s.Token = 0
	case 6:
		s.Outcome = queuev1.Outcome(rnd.IntN(200) - 100)
	case 7:
		s.Queue = "not a name"
	case 8:
		s.Key = strings.Repeat("k", 1025)
	case 9:
		s.Delay = durationpb.New(time.Second)
	}
	return s
}

func TestSettlementsAreReadAsTheGeneratedCodeReadsThem(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		b := &queuev1.SettleBatch{RequestId: rnd.Uint64N(3), HoldCredit: rnd.IntN(2) == 0}
		for range rnd.IntN(20) {
			b.Settlements = append(b.Settlements, anySettlement(rnd))
		}
		raw, err := proto.Marshal(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: b}})
		if err != nil {
			t.Fatal(err)
		}
		var m workMessage
		if err := m.Decode(raw); err != nil || m.settle == nil {
			t.Fatalf("decode: %v", err)
		}
		c := &wire.Checks{}
		want := session.NewPlan(c, b.GetSettlements())
		werr, gerr := c.Err(), m.settle.err
		if (werr == nil) != (gerr == nil) || werr != nil && werr.Error() != gerr.Error() {
			t.Fatalf("seed %d: %v, want %v", seed, gerr, werr)
		}
		if m.settle.id != b.GetRequestId() || m.settle.hold != b.GetHoldCredit() {
			t.Fatalf("seed %d: request %d, hold %v", seed, m.settle.id, m.settle.hold)
		}
		if diff := cmp.Diff(want, m.settle.plan, cmp.AllowUnexported(session.Plan{}, session.Part{})); werr == nil && diff != "" {
			t.Fatalf("seed %d (-generated +ours):\n%s", seed, diff)
		}
	}
}

func TestTooManySettlementsAreNamed(t *testing.T) {
	t.Parallel()
	b := &queuev1.SettleBatch{}
	for range 1001 {
		b.Settlements = append(b.Settlements, &queuev1.Settlement{Queue: "q", Key: "k", Token: 1, Outcome: 1})
	}
	raw, err := proto.Marshal(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: b}})
	if err != nil {
		t.Fatal(err)
	}
	var m workMessage
	if err := m.Decode(raw); err != nil || m.settle.err == nil || !strings.Contains(m.settle.err.Error(), "settlements: 1001") {
		t.Errorf("decode: %v, settle: %v", err, m.settle.err)
	}
}

// FuzzWire: what the generated code can read can be read here, and nothing
// makes it panic.
func FuzzWire(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 1))
	settle := &queuev1.SettleBatch{RequestId: 3}
	for range 12 {
		settle.Settlements = append(settle.Settlements, anySettlement(rnd))
	}
	for _, m := range []proto.Message{
		&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: settle}},
		&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Credit{Credit: &queuev1.Credit{Items: 5}}},
	} {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var w workMessage
		ours, theirs := w.Decode(raw), proto.Unmarshal(raw, &queuev1.WorkRequest{})
		if theirs == nil && ours != nil {
			t.Errorf("a WorkRequest the generated code reads: %v", ours)
		}
		if ours == nil && theirs == nil && w.settle != nil {
			var r queuev1.WorkRequest
			_ = proto.Unmarshal(raw, &r)
			c := &wire.Checks{}
			want := session.NewPlan(c, r.GetSettle().GetSettlements())
			if c.Err() == nil && w.settle.err == nil && len(want.Ops) != len(w.settle.plan.Ops) {
				t.Errorf("%d settlements, want %d", len(w.settle.plan.Ops), len(want.Ops))
			}
		}
	})
}
