package wire

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

func TestAnswersCountUntilTheTransportLetsGo(t *testing.T) {
	t.Parallel()
	s := serving(t, func(c *testConfig) { c.MaxRequestBytes = 1 << 20 })
	large := func() *message.Writer {
		o := message.New()
		o.Raw(1, make([]byte, 700<<10))
		return o
	}
	o := large()
	if err := s.charge(t.Context(), o, 0); err != nil {
		t.Fatal(err)
	}
	err := s.charge(t.Context(), large(), 0)
	if st := rpc.Status(err, fault.Rules); rpc.Code(st) != codes.ResourceExhausted || rpc.Reason(st) != "REQUEST_MEMORY" || rpc.Info(st).GetMetadata()["limit_name"] != "max_request_bytes" || rpc.RetryDelay(st) <= 0 {
		t.Errorf("a second large answer: %v, want RESOURCE_EXHAUSTED REQUEST_MEMORY that names the limit, with RetryInfo", err)
	}
	parts := o.Parts()
	if s.requests.Used() == 0 {
		t.Error("an answer that is being sent is not counted")
	}
	parts.Free()
	if n := s.requests.Used(); n != 0 {
		t.Errorf("%d bytes are counted when it was sent", n)
	}
	if err := s.charge(t.Context(), large(), 0); err != nil { // and its connection breaks
		t.Errorf("when the first was sent: %v", err)
	}
	for began := time.Now(); s.requests.Used() != 0; runtime.GC() {
		if time.Since(began) > time.Minute {
			t.Fatal("an answer that nobody sends is counted for ever")
		}
		time.Sleep(time.Millisecond)
	}
	small := func() *message.Writer {
		o := message.New()
		o.Text(1, strings.Repeat("x", 2000))
		return o
	}
	o = small()
	if err := s.charge(t.Context(), o, 0); err != nil || !o.Lease.Lent || s.requests.Used() < o.Own() {
		t.Errorf("a small answer: %v, %d bytes are counted, lent: %v; want it lent, with its buffer", err, s.requests.Used(), o.Lease.Lent)
	}
	parts = o.Parts()
	if s.requests.Used() == 0 {
		t.Error("a small answer that is being sent is not counted")
	}
	parts.Free()
	if n := s.requests.Used(); n != 0 {
		t.Errorf("%d bytes are counted when the small answer was sent", n)
	}
	var waiting []*message.Writer
	var refused error
	for refused == nil && len(waiting) < 1000 {
		o := small()
		if refused = s.charge(t.Context(), o, 0); refused == nil {
			waiting = append(waiting, o)
		}
		if n := s.requests.Used(); n > 1<<20 {
			t.Fatalf("%d bytes are held by %d small answers", n, len(waiting))
		}
	}
	if !errors.Is(refused, fault.ErrRequestMemory) || len(waiting) < 50 {
		t.Errorf("%d small answers wait, and then: %v", len(waiting), refused)
	}
	for _, o := range waiting[1:] {
		o.Free()
	}
	if waiting = nil; s.requests.Used() == 0 {
		t.Error("one that still waits is not counted")
	}
	for began := time.Now(); s.requests.Used() != 0; runtime.GC() {
		if time.Since(began) > time.Minute {
			t.Fatal("a small answer that nobody sends is counted for ever")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestRequestsThatHoldTooMuchAreErrorsOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := serving(t, func(c *testConfig) { c.MaxRequestBytes = 10 })
	_, err := s.requests.Hold("one", 6, "x")
	if !errors.Is(err, fault.ErrRequestMemory) {
		t.Fatalf("more than a half: %v", err)
	}
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.Meta["limit_name"] != "max_client_request_bytes" || f.Meta["limit"] != "5" {
		t.Errorf("%v, want the limit of one client", err)
	}
}
