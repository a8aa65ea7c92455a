package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a service made by hand, so that the tests need no proto: Call runs
// the function, Stream the other.
type echo struct {
	call   func(ctx context.Context, s string) error
	stream func(ss grpc.ServerStream) error
}

var echoDesc = grpc.ServiceDesc{
	ServiceName: "test.Echo", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Call", Handler: func(srv any, ctx context.Context, dec func(any) error, in grpc.UnaryServerInterceptor) (any, error) {
		req := &wrapperspb.StringValue{}
		if err := dec(req); err != nil {
			return nil, err
		}
		handler := func(ctx context.Context, req any) (any, error) {
			return &emptypb.Empty{}, srv.(*echo).call(ctx, req.(*wrapperspb.StringValue).Value)
		}
		if in == nil {
			return handler(ctx, req)
		}
		return in(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/test.Echo/Call"}, handler)
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Stream", ServerStreams: true, ClientStreams: true, Handler: func(srv any, ss grpc.ServerStream) error {
		return srv.(*echo).stream(ss)
	}}},
}

type bench struct {
	srv  *rpc.Server
	conn *grpc.ClientConn
	stop func() error
}

func start(t *testing.T, cfg rpc.ServerConfig, o rpc.Options, e *echo, d rpc.DialConfig) *bench {
	t.Helper()
	srv, err := rpc.NewServer(cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	srv.RegisterService(&echoDesc, e)
	lis := bufconn.Listen(1 << 20)
	d.Dialer = func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }
	conn, err := rpc.Dial("test.local", d)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, lis) }()
	stopped := false
	b := &bench{srv: srv, conn: conn, stop: func() error {
		cancel()
		stopped = true
		return <-done
	}}
	t.Cleanup(func() {
		if !stopped {
			if err := b.stop(); err != nil {
				t.Errorf("Serve = %v, want nil on a clean stop", err)
			}
		}
		conn.Close()
	})
	return b
}

func (b *bench) call(ctx context.Context, s string) error {
	return b.conn.Invoke(ctx, "/test.Echo/Call", wrapperspb.String(s), &emptypb.Empty{})
}

var errFull = errors.New("queue: full")

func TestErrorsBecomeStatusesWithReasons(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	rules := []rpc.Rule{{
		Is: errFull, Code: codes.ResourceExhausted, Reason: "QUEUE_FULL", Retry: 2 * time.Second,
		Metadata: func(error) map[string]string { return map[string]string{"queue": "q"} },
	}}
	b := start(t, rpc.ServerConfig{}, rpc.Options{Rules: rules, Log: slog.New(slog.NewTextHandler(&logged, nil))}, &echo{call: func(_ context.Context, s string) error {
		switch s {
		case "full":
			return fmt.Errorf("add %q: %w", "a/b", errFull)
		case "fields":
			return errors.Join(rpc.InvalidArgument("items[0].key", "is empty"), fmt.Errorf("x: %w", rpc.InvalidField("rv", errors.New("not a decimal"))))
		case "status":
			return fmt.Errorf("ask: %w", status.Error(codes.NotFound, "no such key"))
		case "secret":
			return errors.New("dial redis://user:hunter2@host")
		case "panic":
			panic("boom")
		}
		return nil
	}}, rpc.DialConfig{})

	err := b.call(t.Context(), "full")
	if rpc.Code(err) != codes.ResourceExhausted || rpc.Reason(err) != "QUEUE_FULL" || rpc.RetryDelay(err) != 2*time.Second || rpc.Info(err).GetMetadata()["queue"] != "q" {
		t.Errorf("full: %v, reason %q, retry %v", err, rpc.Reason(err), rpc.RetryDelay(err))
	}
	err = b.call(t.Context(), "fields")
	want := map[string]string{"items[0].key": "is empty", "rv": "not a decimal"}
	if diff := cmp.Diff(want, rpc.Violations(err)); diff != "" || rpc.Code(err) != codes.InvalidArgument || rpc.Reason(err) != "INVALID_ARGUMENT" {
		t.Errorf("fields: %v, reason %q, violations (-want +got)\n%s", err, rpc.Reason(err), diff)
	}
	if err := b.call(t.Context(), "status"); rpc.Code(err) != codes.NotFound {
		t.Errorf("wrapped status: %v, want NotFound", err)
	}
	for _, hidden := range []string{"secret", "panic"} {
		err := b.call(t.Context(), hidden)
		if rpc.Code(err) != codes.Internal || status.Convert(err).Message() != "internal error" {
			t.Errorf("%s: %v, want a bare Internal", hidden, err)
		}
	}
	if err := b.call(t.Context(), "fine"); err != nil {
		t.Errorf("after a panic: %v, want the server to go on", err)
	}
	_ = b.stop()
	for _, want := range []string{"hunter2", "boom", "handler panicked"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("log does not hold %q", want)
		}
	}
}

func TestAWrappedFieldErrorKeepsItsRule(t *testing.T) {
	t.Parallel()
	errSelector := errors.New("bad selector")
	rules := []rpc.Rule{{Is: errSelector, Code: codes.InvalidArgument, Reason: "INVALID_SELECTOR"}}
	err := rpc.Status(rpc.InvalidField("selector", fmt.Errorf("%w: unbalanced", errSelector)), rules)
	if rpc.Reason(err) != "INVALID_SELECTOR" || rpc.Violations(err)["selector"] != "bad selector: unbalanced" {
		t.Errorf("reason %q, violations %v", rpc.Reason(err), rpc.Violations(err))
	}
	for in, want := range map[error]codes.Code{
		context.Canceled: codes.Canceled,
		fmt.Errorf("wait: %w", context.DeadlineExceeded):                 codes.DeadlineExceeded,
		errors.New("anything"):                                           codes.Internal,
		status.Error(codes.Aborted, "as it is"):                          codes.Aborted,
		errors.Join(errors.New("x"), rpc.InvalidField("f", errSelector)): codes.InvalidArgument,
	} {
		if got := status.Code(rpc.Status(in, rules)); got != want {
			t.Errorf("Status(%v) has code %v, want %v", in, got, want)
		}
	}
	if rpc.Status(nil, rules) != nil || rpc.Code(nil) != codes.OK || rpc.Reason(nil) != "" {
		t.Error("nil is not nil")
	}
}

func TestALittleOfTheCallersDeadlineIsKeptBack(t *testing.T) {
	t.Parallel()
	const timeout, kept = time.Hour, 20 * time.Millisecond
	left := make(chan time.Duration, 1)
	b := start(t, rpc.ServerConfig{}, rpc.Options{}, &echo{call: func(ctx context.Context, _ string) error {
		deadline, _ := ctx.Deadline()
		left <- time.Until(deadline)
		return nil
	}}, rpc.DialConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := b.call(ctx, ""); err != nil {
		t.Fatal(err)
	}
	if got := <-left; got <= 0 || got > timeout-kept {
		t.Errorf("the handler had %v, want at most %v of the caller's %v", got, timeout-kept, timeout)
	}
}

func TestHealthIsPerService(t *testing.T) {
	t.Parallel()
	b := start(t, rpc.ServerConfig{}, rpc.Options{Authorizer: deny{}}, &echo{}, rpc.DialConfig{})
	h := healthpb.NewHealthClient(b.conn)
	check := func(service string, want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		resp, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || resp.GetStatus() != want {
			t.Errorf("health of %q: %v %v, want %v", service, resp.GetStatus(), err, want)
		}
	}
	check("test.Echo", healthpb.HealthCheckResponse_NOT_SERVING)
	check("", healthpb.HealthCheckResponse_NOT_SERVING)
	b.srv.SetServing("test.Echo", true)
	check("test.Echo", healthpb.HealthCheckResponse_SERVING)
	check("", healthpb.HealthCheckResponse_SERVING)
	if _, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "test.Unknown"}); rpc.Code(err) != codes.NotFound {
		t.Errorf("unknown service: %v, want NotFound", err)
	}
}

type deny struct{}

func (deny) Authorize(context.Context, string) (*access.Identity, error) {
	return nil, errors.New("never")
}

func TestTokensDecideWhoMayCallWhat(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tokens := write(t, dir, "tokens", "# comment\n0123456789abcdef all\nfedcba9876543210 reader /test.Other/*\n")
	e := &echo{call: func(context.Context, string) error { return nil }, stream: func(grpc.ServerStream) error { return nil }}
	for _, c := range []struct {
		token string
		want  codes.Code
	}{
		{"", codes.Unauthenticated},
		{"ffffffffffffffffffff", codes.Unauthenticated},
		{"0123456789abcdef", codes.OK},
		{"fedcba9876543210", codes.PermissionDenied},
	} {
		t.Run(c.token, func(t *testing.T) {
			t.Parallel()
			d := rpc.DialConfig{}
			if c.token != "" {
				d.TokenFile = write(t, t.TempDir(), "token", c.token+"\n")
			}
			b := start(t, rpc.ServerConfig{Auth: rpc.AuthConfig{TokenFile: tokens}}, rpc.Options{}, e, d)
			if err := b.call(t.Context(), ""); rpc.Code(err) != c.want {
				t.Errorf("unary: %v, want %v", err, c.want)
			}
			s, err := b.conn.NewStream(t.Context(), &echoDesc.Streams[0], "/test.Echo/Stream")
			if err == nil {
				err = s.RecvMsg(&emptypb.Empty{})
			}
			if c.want == codes.OK && err.Error() != "EOF" || c.want != codes.OK && rpc.Code(err) != c.want {
				t.Errorf("stream: %v, want %v", err, c.want)
			}
		})
	}
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTokenFileFaultsNameTheLineAndNeverTheToken(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                      "no token",
		"a-secret-that-is-long": "line 1",
		"short name":            "shorter",
		"sha256:secret name":    "line 1: sha256: want 64",
		"\nSHA256:" + strings.Repeat("5ec2e7", 8) + " secret": "line 2: sha256: want 64",
		"# c\na-secret-that-is-long n [":                      "line 2: method pattern",
	} {
		_, err := rpc.NewTokens(rpc.AuthConfig{TokenFile: write(t, t.TempDir(), "tokens", text)}, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want an error with %q and no token", text, err, want)
		}
	}
}

func TestATokenFileMayHaveTheHashInPlaceOfAToken(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef-alice"
	hash, err := rpc.HashedToken(token)
	if err != nil {
		t.Fatal(err)
	}
	for _, written := range []string{
		hash, "sha256:" + strings.ToUpper(strings.TrimPrefix(hash, "sha256:")),
		"sha256:065b936147be73a2e128bc7b5a741c4cd8d53daf3884b63922c72fdb37257861", // by sha256sum
	} {
		tokens, err := rpc.NewTokens(rpc.AuthConfig{TokenFile: write(t, t.TempDir(), "tokens", written+" alice groups=web /a.B/*\n")}, nil)
		if err != nil {
			t.Fatal(err)
		}
		who, err := tokens.Presented(token, "/a.B/C")
		if err != nil || who.User != "alice" || !slices.Equal(who.Groups, []string{"web"}) {
			t.Errorf("%s: the token is taken for %v, %v", written, who, err)
		}
		if _, err := tokens.Presented(token, "/a.C/D"); err == nil || rpc.Code(err) == codes.Unauthenticated {
			t.Errorf("%s: a method that is not named: %v", written, err)
		}
		for _, shown := range []string{written, strings.TrimPrefix(written, "sha256:")} {
			if who, err := tokens.Presented(shown, "/a.B/C"); rpc.Code(err) != codes.Unauthenticated {
				t.Errorf("%s lets in: %v, %v", shown, who, err)
			}
		}
	}
}

func TestATokenThatNoFileCouldHaveIsNotHashed(t *testing.T) {
	t.Parallel()
	for token, want := range map[string]string{"": "shorter", "secret": "shorter", "a-secret that-is-long": "white space"} {
		if hash, err := rpc.HashedToken(token); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %s, %v, want an error with %q and no token", token, hash, err, want)
		}
	}
}

func TestTheOpenDoorIsRefused(t *testing.T) {
	t.Parallel()
	tls := rpc.TLSConfig{CertFile: "c", KeyFile: "k"}
	for _, c := range []struct {
		name string
		cfg  rpc.ServerConfig
		open bool
	}{
		{"loopback", rpc.ServerConfig{Listen: "127.0.0.1:1"}, true},
		{"loopback six", rpc.ServerConfig{Listen: "[::1]:1"}, true},
		{"localhost", rpc.ServerConfig{Listen: "localhost:1"}, true},
		{"every interface", rpc.ServerConfig{Listen: ":1"}, false},
		{"tls alone", rpc.ServerConfig{Listen: ":1", TLS: tls}, false},
		{"tokens alone", rpc.ServerConfig{Listen: ":1", Auth: rpc.AuthConfig{TokenFile: "t"}}, false},
		{"tls and explicit allow-all", rpc.ServerConfig{Listen: ":1", TLS: tls, Auth: rpc.AuthConfig{Mode: "allow-all"}}, false},
		{"tls and tokens", rpc.ServerConfig{Listen: ":1", TLS: tls, Auth: rpc.AuthConfig{TokenFile: "t"}}, true},
		{"tls and client certificates", rpc.ServerConfig{Listen: ":1", TLS: rpc.TLSConfig{CertFile: "c", KeyFile: "k", CAFile: "a"}}, true},
		{"insecure", rpc.ServerConfig{Listen: ":1", Insecure: true}, true},
	} {
		if err := c.cfg.Validate(); errors.Is(err, rpc.ErrOpenListen) == c.open {
			t.Errorf("%s: Validate() = %v, want open = %v", c.name, err, c.open)
		}
	}
	err := rpc.ServerConfig{Listen: "nonsense", TLS: rpc.TLSConfig{CertFile: "c"}, Auth: rpc.AuthConfig{Mode: "maybe"}}.Validate()
	for _, want := range []string{"nonsense", "key file", "maybe"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("faults %v do not name %q", err, want)
		}
	}
}

func TestATokenDoesNotTravelInPlainText(t *testing.T) {
	t.Parallel()
	file := write(t, t.TempDir(), "token", "0123456789abcdef")
	if _, err := rpc.Dial("queue.example:7442", rpc.DialConfig{TokenFile: file}); err == nil {
		t.Error("plain text to another host: no error")
	}
	conn, err := rpc.Dial("127.0.0.1:7442", rpc.DialConfig{TokenFile: file})
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestACallThatDoesNotEndIsCutOffAtTheStop(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	b := start(t, rpc.ServerConfig{StopTimeout: 50 * time.Millisecond}, rpc.Options{}, &echo{stream: func(ss grpc.ServerStream) error {
		close(entered)
		<-ss.Context().Done()
		return ss.Context().Err()
	}}, rpc.DialConfig{})
	s, err := b.conn.NewStream(t.Context(), &echoDesc.Streams[0], "/test.Echo/Stream")
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	if err := b.stop(); err != nil {
		t.Errorf("Serve = %v, want nil", err)
	}
	if err := s.RecvMsg(&emptypb.Empty{}); err == nil {
		t.Error("the stream goes on after the stop")
	}
}

func TestMessagesOverTheLimitAreRefusedByName(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	b := start(t, rpc.ServerConfig{MaxMessageBytes: 1000}, rpc.Options{Registry: reg}, &echo{call: func(context.Context, string) error { return nil }}, rpc.DialConfig{})
	if err := b.call(t.Context(), strings.Repeat("x", 2000)); rpc.Code(err) != codes.ResourceExhausted {
		t.Errorf("2000 bytes: %v, want ResourceExhausted", err)
	}
	if err := b.call(t.Context(), "small"); err != nil {
		t.Errorf("then a small one: %v", err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	if !slices.Contains(names, "grpc_server_handled_total") {
		t.Errorf("metrics %v lack grpc_server_handled_total", names)
	}
}
