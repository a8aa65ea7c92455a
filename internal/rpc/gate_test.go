package rpc_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// held is a service whose calls wait until they are let go.
type held struct {
	echo
	entered chan struct{}
	release chan struct{}
}

func newHeld() *held {
	h := &held{entered: make(chan struct{}, 100), release: make(chan struct{})}
	wait := func(ctx context.Context) error {
		h.entered <- struct{}{}
		select {
		case <-h.release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	h.call = func(ctx context.Context, s string) error {
		if s == "quick" {
			return nil
		}
		return wait(ctx)
	}
	h.stream = func(ss grpc.ServerStream) error { return wait(ss.Context()) }
	return h
}

func open(t *testing.T, conn *grpc.ClientConn) grpc.ClientStream {
	t.Helper()
	s, err := conn.NewStream(t.Context(), &echoDesc.Streams[0], "/test.Echo/Stream")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wantRefused(t *testing.T, what string, err error, reason string) {
	t.Helper()
	if rpc.Code(err) != codes.ResourceExhausted || rpc.Reason(err) != reason || rpc.RetryDelay(err) <= 0 {
		t.Errorf("%s: %v, reason %q, retry in %v; want RESOURCE_EXHAUSTED %s with RetryInfo", what, err, rpc.Reason(err), rpc.RetryDelay(err), reason)
	}
}

func TestCallsOfOneClientAreBoundedOverItsConnections(t *testing.T) {
	t.Parallel()
	h := newHeld()
	reg := prometheus.NewRegistry()
	addr := listen(t, rpc.ServerConfig{MaxClientCalls: 2, MaxClientStreams: 1, MaxStreams: 3}, rpc.Options{Registry: reg}, &h.echo)
	one, two := dial(t, addr, rpc.DialConfig{}), dial(t, addr, rpc.DialConfig{})
	done := make(chan error, 2)
	for _, conn := range []*grpc.ClientConn{one, two} {
		go func() { done <- invoke(t.Context(), conn, "") }()
		<-h.entered
	}
	for _, conn := range []*grpc.ClientConn{one, two} {
		wantRefused(t, "a third call", invoke(t.Context(), conn, "quick"), "TOO_MANY_REQUESTS")
	}
	s := open(t, one) // streams are counted apart
	<-h.entered
	wantRefused(t, "a second stream", open(t, two).RecvMsg(&emptypb.Empty{}), "TOO_MANY_STREAMS")
	if _, err := healthpb.NewHealthClient(one).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("health at the limit: %v, want an answer", err)
	}
	close(h.release)
	for range 2 {
		if err := <-done; err != nil {
			t.Errorf("an admitted call: %v", err)
		}
	}
	if err := s.RecvMsg(&emptypb.Empty{}); !errors.Is(err, io.EOF) {
		t.Errorf("the admitted stream ends with %v, want EOF", err)
	}
	for range 5 {
		if err := invoke(t.Context(), one, "quick"); err != nil {
			t.Errorf("after the others have ended: %v", err)
		}
		if err := open(t, two).RecvMsg(&emptypb.Empty{}); !errors.Is(err, io.EOF) {
			t.Errorf("a stream after the other has ended: %v, want EOF", err)
		}
	}
	for name, want := range map[string]float64{"too_many_requests": 2, "too_many_streams": 1} {
		if got := value(t, reg, "deltaplane_rpc_refused_total", name); got != want {
			t.Errorf("refused as %s = %v, want %v", name, got, want)
		}
	}
	if got := value(t, reg, "deltaplane_rpc_clients", ""); got != 1 {
		t.Errorf("clients = %v, want 1", got)
	}
}

// value reads one metric; label is the value of its only label.
func value(t *testing.T, reg prometheus.Gatherer, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s %s", name, label)
	return 0
}

func TestStreamsOfAllClientsAreBounded(t *testing.T) {
	t.Parallel()
	h := newHeld()
	tokens := write(t, t.TempDir(), "tokens", "0123456789abcdef one\nfedcba9876543210 two\n")
	addr := listen(t, rpc.ServerConfig{MaxClientStreams: 2, MaxStreams: 3, MaxClientCalls: 1, Auth: rpc.AuthConfig{TokenFile: tokens}}, rpc.Options{}, &h.echo)
	one := dial(t, addr, rpc.DialConfig{TokenFile: write(t, t.TempDir(), "token", "0123456789abcdef")})
	two := dial(t, addr, rpc.DialConfig{TokenFile: write(t, t.TempDir(), "token", "fedcba9876543210")})
	for _, conn := range []*grpc.ClientConn{one, one, two} {
		open(t, conn)
		<-h.entered
	}
	wantRefused(t, "a fourth stream", open(t, two).RecvMsg(&emptypb.Empty{}), "TOO_MANY_STREAMS")
	// One host, but two clients by their tokens.
	done := make(chan error, 1)
	go func() { done <- invoke(t.Context(), one, "") }()
	<-h.entered
	wantRefused(t, "a second call of one", invoke(t.Context(), one, "quick"), "TOO_MANY_REQUESTS")
	if err := invoke(t.Context(), two, "quick"); err != nil {
		t.Errorf("a call of two while one is at its limit: %v", err)
	}
	close(h.release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestClientsAreToldApartByTheirCertificates(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, t.TempDir())
	h := newHeld()
	for _, name := range []string{"server", "one", "other"} {
		ca.issue(t, name, nil)
	}
	addr := listen(t, rpc.ServerConfig{MaxClientCalls: 1, TLS: ca.files("server")}, rpc.Options{}, &h.echo)
	as := func(name string) *grpc.ClientConn {
		return dial(t, addr, rpc.DialConfig{TLS: ca.files(name), ServerName: "test.local"})
	}
	one, again, other := as("one"), as("one"), as("other")
	done := make(chan error, 1)
	go func() { done <- invoke(t.Context(), one, "") }()
	<-h.entered
	wantRefused(t, "another connection of the same name", invoke(t.Context(), again, "quick"), "TOO_MANY_REQUESTS")
	if err := invoke(t.Context(), other, "quick"); err != nil {
		t.Errorf("another name from the same host: %v", err)
	}
	close(h.release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Behind a proxy one connection is that of several clients.
func TestAStreamOnASharedConnectionKnowsItsClient(t *testing.T) {
	t.Parallel()
	tokens := write(t, t.TempDir(), "tokens", "0123456789abcdef one\nfedcba9876543210 two\n")
	names, asked := make(chan string, 1), make(chan struct{})
	e := &echo{stream: func(ss grpc.ServerStream) error {
		names <- "opened"
		<-asked
		names <- rpc.Client(ss.Context())
		return nil
	}}
	b := start(t, rpc.ServerConfig{Auth: rpc.AuthConfig{TokenFile: tokens}}, rpc.Options{}, e, rpc.DialConfig{})
	for _, token := range []string{"0123456789abcdef", "fedcba9876543210"} {
		s, err := b.conn.NewStream(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token), &echoDesc.Streams[0], "/test.Echo/Stream")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.RecvMsg(&emptypb.Empty{}) }()
		<-names
	}
	close(asked)
	if got := map[string]bool{<-names: true, <-names: true}; !got["token one"] || !got["token two"] {
		t.Errorf("two clients on one connection are taken for %v", got)
	}
}

func TestACallOnASharedConnectionKnowsItsClient(t *testing.T) {
	t.Parallel()
	tokens := write(t, t.TempDir(), "tokens", "0123456789abcdef one\nfedcba9876543210 two\n")
	entered, asked := make(chan struct{}, 2), make(chan struct{})
	names := make(chan string, 2)
	e := &echo{call: func(ctx context.Context, _ string) error {
		entered <- struct{}{}
		<-asked
		names <- rpc.Client(ctx)
		return nil
	}}
	b := start(t, rpc.ServerConfig{Auth: rpc.AuthConfig{TokenFile: tokens}}, rpc.Options{}, e, rpc.DialConfig{})
	done := make(chan error, 2)
	for _, token := range []string{"0123456789abcdef", "fedcba9876543210"} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
		go func() { done <- invoke(ctx, b.conn, "") }()
		<-entered
	}
	close(asked)
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if got := map[string]bool{<-names: true, <-names: true}; !got["token one"] || !got["token two"] {
		t.Errorf("two clients on one connection are taken for %v", got)
	}
}

func TestClientsThatLeaveAreForgotten(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	e := &echo{call: func(context.Context, string) error { return nil }}
	addr := listen(t, rpc.ServerConfig{}, rpc.Options{Registry: reg}, e)
	for range 3 {
		conn := dial(t, addr, rpc.DialConfig{})
		if err := invoke(t.Context(), conn, ""); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		if value(t, reg, "deltaplane_rpc_clients", "") == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("clients are kept after their connections")
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestStopTellsHealthFirstAndAnswersDuringTheGrace(t *testing.T) {
	t.Parallel()
	h := newHeld()
	srv, err := rpc.NewServer(rpc.ServerConfig{DrainGrace: 300 * time.Millisecond}, rpc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h.stream = func(ss grpc.ServerStream) error { <-srv.Stopping(); return nil }
	srv.RegisterService(&echoDesc, &h.echo)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	partEnded := make(chan struct{})
	go func() {
		done <- srv.Run(ctx, func(ctx context.Context) error { <-ctx.Done(); close(partEnded); return nil })
	}()
	addr, err := srv.Addr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	srv.SetServing("test.Echo", true)
	conn := dial(t, addr, rpc.DialConfig{})
	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "test.Echo"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := watch.Recv(); err != nil || got.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("health = %v, %v", got, err)
	}
	s := open(t, conn)
	cancel()
	began := time.Now()
	if got, err := watch.Recv(); err != nil || got.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("health after the stop = %v, %v", got, err)
	}
	if srv.Ready(t.Context()) == nil {
		t.Error("ready while it drains")
	}
	for time.Since(began) < 150*time.Millisecond {
		if err := invoke(t.Context(), conn, "quick"); err != nil {
			t.Errorf("a call in the grace: %v", err)
		}
	}
	select {
	case <-srv.Stopping():
		t.Error("streams are instructed to end before the grace is over")
	case <-partEnded:
		t.Error("a part ended before the calls")
	default:
	}
	if err := s.RecvMsg(&emptypb.Empty{}); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v, want EOF", err)
	}
	if err := <-done; err != nil {
		t.Errorf("Run = %v, want nil on a clean stop", err)
	}
	<-partEnded
}

func TestTheFirstErrorOfAPartEndsTheServer(t *testing.T) {
	t.Parallel()
	srv, err := rpc.NewServer(rpc.ServerConfig{}, rpc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	other := make(chan struct{})
	err = srv.Run(t.Context(),
		func(context.Context) error { return errFull },
		func(ctx context.Context) error { <-ctx.Done(); close(other); return nil })
	if err != errFull { //nolint:errorlint // the very error
		t.Errorf("Run = %v, want the part's error", err)
	}
	<-other
}

func TestLimitsThatMakeNoSenseAreReportedTogether(t *testing.T) {
	t.Parallel()
	err := rpc.ServerConfig{
		MaxClientCalls: -2, MaxClientStreams: 10, MaxStreams: 5, StreamWorkers: -3, DrainGrace: -1, StopTimeout: -1, MaxMessageBytes: -1,
		MaxConnectionGrace: -1, KeepaliveMinTime: -1,
	}.Validate()
	for _, want := range []string{
		"max client calls", "max client streams 10 exceeds", "stream workers", "drain grace", "stop timeout", "max message bytes",
		"max connection grace", "keepalive",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("faults %v do not name %q", err, want)
		}
	}
	if err := (rpc.ServerConfig{MaxClientCalls: -1, MaxClientStreams: -1, MaxStreams: -1}).Validate(); err != nil {
		t.Errorf("no limits: %v", err)
	}
}

// listen serves on a port until the test ends.
func listen(t *testing.T, cfg rpc.ServerConfig, o rpc.Options, e *echo) string {
	t.Helper()
	cfg.StopTimeout = 100 * time.Millisecond
	srv, err := rpc.NewServer(cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	srv.RegisterService(&echoDesc, e)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil on a clean stop", err)
		}
	})
	addr, err := srv.Addr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func dial(t *testing.T, addr string, cfg rpc.DialConfig) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.Dial(addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func invoke(ctx context.Context, conn *grpc.ClientConn, s string) error {
	return conn.Invoke(ctx, "/test.Echo/Call", wrapperspb.String(s), &emptypb.Empty{})
}
