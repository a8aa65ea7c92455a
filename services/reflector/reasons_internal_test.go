package reflector

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/stream"
)

func TestEveryErrorHasOneWord(t *testing.T) {
	t.Parallel()
	code := func(n int) error { return &kube.StatusError{Code: n} }
	for _, row := range []struct {
		stage string
		err   error
		want  string
	}{
		{"list", code(401), "UNAUTHORIZED"},
		{"list", code(403), "FORBIDDEN"},
		{"watch", code(404), "NOT_SERVED"},
		{"watch", code(410), "EXPIRED"},
		{"list", &kube.StatusError{Code: 504, Reason: "Timeout", Message: "Too large resource version: 9"}, "EXPIRED"},
		{"watch", code(429), "THROTTLED"},
		{"list", code(400), "REFUSED"},
		{"list", code(422), "REFUSED"},
		{"watch", code(500), "SOURCE_FAILED"},
		{"list", code(503), "SOURCE_FAILED"},
		{"list", x509.UnknownAuthorityError{}, "CERTIFICATE"},
		{"list", x509.HostnameError{Certificate: &x509.Certificate{}, Host: "x"}, "CERTIFICATE"},
		{"list", &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}, "CERTIFICATE"},
		{"list", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "UNREACHABLE"},
		{"list", &net.DNSError{Err: "no such host", Name: "x"}, "UNREACHABLE"},
		{"list", context.DeadlineExceeded, "UNREACHABLE"},
		{"watch", io.ErrUnexpectedEOF, "UNREACHABLE"},
		{"list", kube.ErrBadAnswer, "BAD_ANSWER"},
		{"watch", errVeryShort, "SHORT_WATCH"},
		{"list", errUnfinished, "STREAM_UNFINISHED"},
		{"resolve", kube.ErrNotServed, "NOT_SERVED"},
		{"resolve", errSecondScope, "SECOND_SCOPE"},
		{"list", errors.New("what is this"), "INTERNAL"},
		{stageLead, errReplaced, "SOURCE_REPLACED"},
		{stageLead, errNewEpoch, "SOURCE_RESTORED"},
		{stageLead, errLeaseLost, "DEPOSED"},
		{stageLead, stream.ErrDeposed, "DEPOSED"},
		{stageLead, stream.ErrLogLost, "LOG_LOST"},
		{stageLead, stream.ErrForeign, "FOREIGN_LOG"},
		{stageLead, stream.ErrNoJetStream, "NO_JETSTREAM"},
		{stageLead, stream.ErrLogFull, "LOG_FULL"},
		{stageLead, stream.ErrUnavailable, "LOG_UNAVAILABLE"},
		{stageLead, context.DeadlineExceeded, "LOG_UNAVAILABLE"},
		{stageLead, context.Canceled, "INTERNAL"},
	} {
		if got := reasonOf(row.stage, fmt.Errorf("pods: %w", row.err)); got != row.want {
			t.Errorf("%s: %v is %s, want %s", row.stage, row.err, got, row.want)
		}
	}
}

// The words are a closed set, which the contract lists.
func TestEveryReasonIsInTheContract(t *testing.T) {
	t.Parallel()
	contract, err := os.ReadFile("../../proto/deltaplane/reflector/v1/reflector.proto")
	if err != nil {
		t.Fatal(err)
	}
	_, set, _ := strings.Cut(string(contract), "as a word of a closed set")
	set, _, _ = strings.Cut(set, "string reason")
	words := regexp.MustCompile(`[A-Z][A-Z_]+`).FindAllString(set, -1)
	for _, row := range append(slices.Clone(sourceReasons), leadReasons...) {
		if !slices.Contains(words, row.word) {
			t.Errorf("%s is not in %v", row.word, words)
		}
	}
	if len(words) < 10 || !slices.Contains(words, "INTERNAL") {
		t.Errorf("the contract lists %v", words)
	}
}

func TestARetryIsToldOnlyWhileItIsAhead(t *testing.T) {
	t.Parallel()
	var s state
	s.fail("THROTTLED", errors.New("slow down"), time.Now(), time.Hour)
	if p := s.proto(); p.GetReason() != "THROTTLED" || p.GetLastError() != "slow down" || time.Until(p.GetNextRetryAt().AsTime()) < 50*time.Minute {
		t.Errorf("while it waits: %v", p)
	}
	s.fail("THROTTLED", errors.New("slow down"), time.Now().Add(-time.Hour), time.Minute)
	if p := s.proto(); p.GetNextRetryAt() != nil || p.GetReason() == "" {
		t.Errorf("while it tries again: %v", p)
	}
	s.well()
	if p := s.proto(); p.GetReason() != "" || p.GetLastError() != "" || p.GetNextRetryAt() != nil || p.GetLastErrorAt() != nil {
		t.Errorf("when all is well: %v", p)
	}
}

func TestProgressOfAList(t *testing.T) {
	t.Parallel()
	r := &reflection{}
	s := &r.state
	reg := prometheus.NewPedanticRegistry()
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	reg.MustRegister(gauges{&Service{metrics: m, reflections: []*reflection{r}}})
	gauged := func() map[string]float64 {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, f := range families {
			if name, ok := strings.CutPrefix(f.GetName(), "deltaplane_reflector_list_"); ok {
				out[name] = f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return out
	}
	if p := s.proto().GetList(); p != nil || len(gauged()) != 0 {
		t.Errorf("no list runs: %v, %v", p, gauged())
	}
	s.listing(false, time.Now().Add(-10*time.Second))
	s.set(func(v *view) { v.list.objects = 500 })
	if p := s.proto().GetList(); p.GetRemaining() != nil || p.GetObjects() != 500 || p.GetRate() > 50 || p.GetRate() < 10 {
		t.Errorf("before the first page ends: %v", p)
	}
	if diff := cmp.Diff(map[string]float64{"objects": 500}, gauged()); diff != "" {
		t.Errorf("gauges before the first page ends (-want +got):\n%s", diff)
	}
	s.page(1200)
	s.set(func(v *view) { v.list.objects = 900 })
	if p := s.proto().GetList(); p.GetRemaining().GetValue() != 800 || p.GetPages() != 1 || p.GetStreaming() || p.GetBeganAt() == nil {
		t.Errorf("in the second page: %v", p)
	}
	if diff := cmp.Diff(map[string]float64{"objects": 900, "remaining": 800}, gauged()); diff != "" {
		t.Errorf("gauges in the second page (-want +got):\n%s", diff)
	}
	s.listed()
	if p := s.proto().GetList(); p != nil || len(gauged()) != 0 {
		t.Errorf("the list has ended: %v, %v", p, gauged())
	}
	if s.listing(true, time.Now()); !s.proto().GetList().GetStreaming() {
		t.Error("a stream is told as a list")
	}
}
