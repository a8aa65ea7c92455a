package work_test

import (
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func settlements(ls ...*queuev1.Lease) (out []*queuev1.Settlement) {
	for _, l := range ls {
		out = append(out, &queuev1.Settlement{Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuetest.Done})
	}
	return out
}

// keysOf are further keys of a partition of two.
func keysOf(part, n int) (out []string) {
	for i := 5000; len(out) < n; i++ {
		if key := "default/job-" + strconv.Itoa(i); engine.PartitionOf(key, 2) == part {
			out = append(out, key)
		}
	}
	return out
}

func TestOneSettleAnswersForEachPartitionByItself(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]bool{"silent": false, "refused": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, a, _, held := twoParts(t, 1, &queuev1.Hello{SessionId: "w", Partial: true})
			a.Away()
			if refused {
				a.Deny()
			}
			nowhere := &queuev1.Settlement{Queue: "nowhere", Key: "a", Token: 1, Outcome: queuetest.Done}
			req := &queuev1.SettleRequest{SessionId: "w", RequestId: 1, Partial: true, Settlements: append(settlements(held[1], held[0]), nowhere)}
			got, err := r.Settle(t.Context(), req)
			if err != nil || len(got.GetResults()) != 3 {
				t.Fatalf("Settle = %v, %v", got, err)
			}
			for i, want := range []queuev1.SettleStatus{queuetest.Unavailable, queuetest.SettledOK, queuev1.SettleStatus_SETTLE_STATUS_NOT_LEASED} {
				if res := got.GetResults()[i]; res.GetStatus() != want || res.GetKey() != req.GetSettlements()[i].GetKey() {
					t.Errorf("result %d: %v, want %v", i, res, want)
				}
			}
			if c := r.Counts(t); c.GetProcessing() != 1 {
				t.Errorf("counts %v, want the one held that was not reached", c)
			}
			a.Back()
			// Sent again until it is reached, as the contract says.
			for id := uint64(2); ; id++ {
				got, err := r.Settle(t.Context(), &queuev1.SettleRequest{SessionId: "w", RequestId: id, Partial: true, Settlements: settlements(held[1])})
				if err != nil {
					t.Fatal(err)
				}
				st := got.GetResults()[0].GetStatus()
				if st == queuetest.SettledOK {
					break
				}
				if st != queuetest.Unavailable || id > 100 {
					t.Fatalf("sent again: %v", st)
				}
			}
			if c := r.Counts(t); c.GetProcessing() != 0 {
				t.Errorf("counts %v, want none held", c)
			}
		})
	}
}

func TestOneExtendAnswersForEachPartitionByItself(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]bool{"silent": false, "refused": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, a, _, held := twoParts(t, 1, &queuev1.Hello{SessionId: "w", Partial: true})
			a.Away()
			if refused {
				a.Deny()
			}
			refs := []*queuev1.LeaseRef{queuetest.Ref(held[0]), queuetest.Ref(held[1]), {Queue: "nowhere", Key: "a", Token: 1}}
			got, err := r.Extend(t.Context(), &queuev1.ExtendRequest{SessionId: "w", Leases: refs, Partial: true})
			if err != nil || got.GetExtended() != 1 || got.GetRemaining().AsDuration() < time.Second {
				t.Fatalf("Extend = %v, %v", got, err)
			}
			if u := got.GetUnreachable(); len(u) != 1 || u[0].GetKey() != held[1].GetKey() {
				t.Errorf("unreachable %v", u)
			}
			if l := got.GetLost(); len(l) != 1 || l[0].GetQueue() != "nowhere" {
				t.Errorf("lost %v", l)
			}
			got, err = r.Extend(t.Context(), &queuev1.ExtendRequest{SessionId: "w", Partial: true})
			if err != nil || got.GetExtended() != 1 || len(got.GetUnreachable()) != 1 {
				t.Errorf("Extend of all = %v, %v", got, err)
			}
			if !refused {
				a.Deny()
			}
			if _, err := r.Extend(t.Context(), &queuev1.ExtendRequest{SessionId: "w"}); rpc.Reason(err) != "STORE_UNAVAILABLE" {
				t.Errorf("Extend without partial = %v", err)
			}
		})
	}
}

func TestAGetBringsWhatIsReachedAndSaysWhatIsNot(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		refused bool
		wait    time.Duration
	}{
		"silent":       {false, 0},
		"refused":      {true, 0},
		"silent, long": {false, 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, a, _, _ := twoParts(t, 1, &queuev1.Hello{SessionId: "w", Partial: true})
			a.Away()
			if tc.refused {
				a.Deny()
			}
			get := func() *queuev1.GetResponse {
				t.Helper()
				got, err := r.Get(t.Context(), &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "g", Wait: durationpb.New(tc.wait)})
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			// Where a transaction that nobody here waits in was the first to hang, the partition is called
			// silent when it has been for a while, and a wait may be over before.
			for tries := 0; len(get().GetUnreachable()) == 0; tries++ {
				if tries == 100 {
					t.Fatal("a silent partition is not said to be")
				}
			}
			for range 3 { // also behind the silent transaction of the one before
				if got := get(); len(got.GetLeases()) != 0 || len(got.GetUnreachable()) != 1 || got.GetUnreachable()[0] != 1 {
					t.Errorf("nothing is ready: %v", got)
				}
			}
			r.AddKeys(t, keysOf(0, 3)...)
			for range 3 {
				if got := get(); len(got.GetLeases()) != 1 {
					t.Errorf("one is ready: %v", got)
				}
			}
			if _, err := r.ShutDown(t.Context(), &queuev1.ShutDownRequest{SessionId: "g"}); err != nil {
				t.Fatal(err)
			}
			if got := get(); got.GetShutDown() {
				t.Errorf("shut down, when a partition was not reached: %v", got)
			}
			a.Back()
			for range 100 { // the dispatcher pauses after a failure
				if got := get(); len(got.GetUnreachable()) == 0 {
					if !got.GetShutDown() {
						t.Errorf("reached: %v", got)
					}
					return
				}
			}
			t.Error("still not reached")
		})
	}
}

func TestAGetAfterShutDownBringsWhatIsReadyHoweverShortItsWait(t *testing.T) {
	t.Parallel()
	r, _, _, _ := twoParts(t, 1, &queuev1.Hello{SessionId: "w", Partial: true})
	get := func() *queuev1.GetResponse {
		t.Helper()
		got, err := r.Get(t.Context(), &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "g", Wait: durationpb.New(time.Nanosecond)})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	get() // opens the session
	const n = 50
	r.AddKeys(t, keysOf(0, n)...)
	if _, err := r.ShutDown(t.Context(), &queuev1.ShutDownRequest{SessionId: "g"}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if got := get(); len(got.GetLeases()) != 1 || got.GetShutDown() {
			t.Fatalf("get %d of %d keys that are ready: %v", i, n, got)
		}
	}
	if got := get(); !got.GetShutDown() {
		t.Errorf("nothing is left: %v", got)
	}
}
