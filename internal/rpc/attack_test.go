package rpc_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // what makes a server of grpc-go inflate
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// listening serves the echo service on a port of loopback.
func listening(t *testing.T, cfg rpc.ServerConfig, o rpc.Options, e *echo) string {
	t.Helper()
	srv, err := rpc.NewServer(cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	srv.RegisterService(&echoDesc, e)
	lis, err := rpc.Listen(rpc.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, lis) }()
	t.Cleanup(func() { cancel(); <-done })
	return lis.Addr().String()
}

// attacker speaks HTTP/2 by hand, so that it may send what no client would.
type attacker struct {
	t    *testing.T
	conn net.Conn
	fr   *http2.Framer
	buf  bytes.Buffer
	enc  *hpack.Encoder
	next uint32
}

func attack(t *testing.T, addr string) *attacker {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	a := &attacker{t: t, conn: conn, fr: http2.NewFramer(conn, conn), next: 1}
	a.enc = hpack.NewEncoder(&a.buf)
	a.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	a.must(a.fr.WriteSettings())
	return a
}

func (a *attacker) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// begin sends the headers of a call, in as many frames as they take.
func (a *attacker) begin(method string, more ...string) uint32 {
	a.t.Helper()
	id, err := a.tryBegin(method, more...)
	a.must(err)
	return id
}

// tryBegin is begin on a connection that may have ended.
func (a *attacker) tryBegin(method string, more ...string) (id uint32, err error) {
	a.buf.Reset()
	fields := append([]string{
		":method", "POST", ":scheme", "http", ":path", method, ":authority", "test.local", "content-type", "application/grpc", "te", "trailers",
	}, more...)
	for i := 0; i < len(fields); i += 2 {
		if err := a.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			return 0, err
		}
	}
	var block []byte
	id, block = a.next, a.buf.Bytes()
	a.next += 2
	const most = 16 << 10
	first := min(len(block), most)
	err = a.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:first], EndHeaders: first == len(block)})
	for block = block[first:]; err == nil && len(block) > 0; {
		n := min(len(block), most)
		err = a.fr.WriteContinuation(id, n == len(block), block[:n])
		block = block[n:]
	}
	return id, err
}

func (a *attacker) send(id uint32, end bool, data []byte) {
	a.t.Helper()
	for {
		n := min(len(data), 16<<10)
		a.must(a.fr.WriteData(id, end && n == len(data), data[:n]))
		if data = data[n:]; len(data) == 0 {
			return
		}
	}
}

// framed puts the head of a gRPC message before data.
func framed(compressed bool, data []byte) []byte {
	head := make([]byte, 5, 5+len(data))
	if compressed {
		head[0] = 1
	}
	binary.BigEndian.PutUint32(head[1:], uint32(len(data)))
	return append(head, data...)
}

const anyCall = 0

// outcome waits for the end of a call, or of any: its status, or how its stream was reset.
func (a *attacker) outcome(id uint32) (codes.Code, http2.ErrCode) {
	a.t.Helper()
	for {
		frame, err := a.fr.ReadFrame()
		if err != nil {
			a.t.Fatalf("before the end of call %d: %v", id, err)
		}
		if id != anyCall && frame.Header().StreamID != id {
			continue
		}
		switch f := frame.(type) {
		case *http2.RSTStreamFrame:
			if f.ErrCode != http2.ErrCodeNo { // follows a status when the client goes on sending
				return codes.OK, f.ErrCode
			}
		case *http2.MetaHeadersFrame:
			for _, field := range f.Fields {
				if field.Name == "grpc-status" {
					n, _ := strconv.Atoi(field.Value)
					return codes.Code(n), 0
				}
			}
		}
	}
}

// allocated is how many bytes do allocates, on all goroutines.
func allocated(do func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

const echoCall = "/test.Echo/Call"

//nolint:paralleltest // allocations are counted for the whole process
func TestACompressedMessageIsNotInflated(t *testing.T) {
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	message, _ := proto.Marshal(wrapperspb.String(strings.Repeat("x", 15<<20)))
	_, _ = w.Write(message)
	_ = w.Close()
	body := framed(true, bomb.Bytes())
	reached := 0
	e := &echo{call: func(context.Context, string) error { reached++; return nil }}
	for name, c := range map[string]struct {
		auth   bool
		fields []string
		method string
	}{
		"without a token":         {true, nil, echoCall},
		"with a token":            {true, []string{"authorization", "Bearer 0123456789abcdef"}, echoCall},
		"without authentication":  {false, nil, echoCall},
		"to health":               {true, nil, healthpb.Health_Check_FullMethodName},
		"to a watch of health":    {true, nil, healthpb.Health_Watch_FullMethodName},
		"to an unknown encoding":  {true, []string{"grpc-encoding", "zstd"}, echoCall},
		"to a stream of the echo": {false, nil, "/test.Echo/Stream"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := rpc.ServerConfig{}
			if c.auth {
				cfg.Auth.TokenFile = write(t, t.TempDir(), "tokens", "0123456789abcdef all\n")
			}
			a := attack(t, listening(t, cfg, rpc.Options{}, e))
			fields := c.fields
			if len(fields) == 0 || fields[0] != "grpc-encoding" {
				fields = append(slices.Clip(fields), "grpc-encoding", "gzip")
			}
			if n := allocated(func() {
				for range 60 {
					id := a.begin(c.method, fields...)
					a.send(id, true, body)
					if code, _ := a.outcome(id); code != codes.Unimplemented {
						t.Fatalf("status %v, want Unimplemented", code)
					}
				}
			}); n > 16<<20 {
				t.Errorf("60 calls of %d bytes allocated %d MiB", len(body), n>>20)
			}
		})
	}
	if reached != 0 {
		t.Errorf("%d calls reached the handler", reached)
	}
}

//nolint:paralleltest // allocations are counted for the whole process
func TestHeadersOfTenMegabytesAreNotKept(t *testing.T) {
	a := attack(t, listening(t, rpc.ServerConfig{}, rpc.Options{}, &echo{call: func(context.Context, string) error { return nil }}))
	large := strings.Repeat("v", 3000) // goes to the table, and takes a byte from then on
	n := allocated(func() {
		for range 20 {
			var fields []string
			for range 10 << 20 / len(large) {
				fields = append(fields, "x-large", large)
			}
			id := a.begin(echoCall, fields...)
			if code, reset := a.outcome(id); reset == 0 {
				t.Fatalf("status %v, want a reset stream", code)
			}
		}
	})
	if n > 20<<20 {
		t.Errorf("20 calls with headers of 10 MiB allocated %d MiB", n>>20)
	}
	id := a.begin(echoCall, "x-large", strings.Repeat("v", 60<<10))
	a.send(id, true, framed(false, nil))
	if code, reset := a.outcome(id); code != codes.OK || reset != 0 {
		t.Errorf("headers of 60 KiB: status %v, reset %v, want none", code, reset)
	}
}

func TestALongMessageIsRefusedByItsHead(t *testing.T) {
	t.Parallel()
	cfg := rpc.ServerConfig{Auth: rpc.AuthConfig{TokenFile: write(t, t.TempDir(), "tokens", "0123456789abcdef all\n")}}
	token := []string{"authorization", "Bearer 0123456789abcdef"}
	o := rpc.Options{MessageBytes: map[string]int{echoCall: 2000}}
	e := &echo{
		call: func(context.Context, string) error { return nil },
		stream: func(ss grpc.ServerStream) error {
			return ss.RecvMsg(&emptypb.Empty{})
		},
	}
	addr := listening(t, cfg, o, e)
	const reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
	for _, c := range []struct {
		name, method string
		length       int
		fields       []string
		want         codes.Code
	}{
		{"health check", healthpb.Health_Check_FullMethodName, 5000, nil, codes.ResourceExhausted},
		{"health watch", healthpb.Health_Watch_FullMethodName, 5000, nil, codes.ResourceExhausted},
		{"reflection", reflection, 65<<10 + 1, token, codes.ResourceExhausted},
		{"reflection without a token", reflection, 10, nil, codes.Unauthenticated},
		{"a method's own bound", echoCall, 2001, token, codes.ResourceExhausted},
		{"the server's bound", "/test.Echo/Stream", 16<<20 + 1, token, codes.ResourceExhausted},
		{"no token", echoCall, 10, nil, codes.Unauthenticated},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := attack(t, addr)
			id := a.begin(c.method, c.fields...)
			head := make([]byte, 5)
			binary.BigEndian.PutUint32(head[1:], uint32(c.length))
			a.send(id, false, head) // nothing else is sent, so nothing else can have been read
			if code, reset := a.outcome(id); code != c.want {
				t.Errorf("status %v, reset %v, want %v", code, reset, c.want)
			}
		})
	}
}

func TestAHealthCheckHasOneMessage(t *testing.T) {
	t.Parallel()
	addr := listening(t, rpc.ServerConfig{}, rpc.Options{}, &echo{})
	request, _ := proto.Marshal(&healthpb.HealthCheckRequest{})
	for name, c := range map[string]struct {
		body []byte
		want codes.Code
	}{
		"one":               {framed(false, request), codes.OK},
		"two":               {append(framed(false, request), framed(false, request)...), codes.Internal},
		"none":              {nil, codes.Internal},
		"half of the head":  {[]byte{0, 0}, codes.Internal},
		"half of a message": {framed(false, []byte("abcdef"))[:8], codes.Internal},
		"nonsense":          {framed(false, []byte{0xff}), codes.Internal},
		"marked compressed": {framed(true, request), codes.Unimplemented},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := attack(t, addr)
			id := a.begin(healthpb.Health_Check_FullMethodName)
			a.send(id, true, c.body)
			if code, reset := a.outcome(id); code != c.want || reset != 0 {
				t.Errorf("status %v, reset %v, want %v", code, reset, c.want)
			}
		})
	}
}

func TestACallWithoutATokenThatNeverSendsItsMessageIsOver(t *testing.T) {
	t.Parallel()
	cfg := rpc.ServerConfig{Auth: rpc.AuthConfig{TokenFile: write(t, t.TempDir(), "tokens", "0123456789abcdef all\n")}}
	a := attack(t, listening(t, cfg, rpc.Options{}, &echo{}))
	for _, more := range [][]string{nil, {"grpc-timeout", "99999999H"}} {
		if code, _ := a.outcome(a.begin(echoCall, more...)); code != codes.Unauthenticated {
			t.Errorf("status %v with %v, want Unauthenticated", code, more)
		}
	}
}

func TestHealthCallsAreBoundedAndHaveSmallHeaders(t *testing.T) {
	t.Parallel()
	addr := listening(t, rpc.ServerConfig{MaxClientConnections: 3}, rpc.Options{}, &echo{})
	a := attack(t, addr)
	if code, _ := a.outcome(a.begin(healthpb.Health_Check_FullMethodName, "x", strings.Repeat("v", 9<<10))); code != codes.ResourceExhausted {
		t.Errorf("headers of 9 KiB: %v, want ResourceExhausted", code)
	}
	request, _ := proto.Marshal(&healthpb.HealthCheckRequest{})
	for range 3 { // wait for ever: the client's end does not come
		a.send(a.begin(healthpb.Health_Check_FullMethodName), false, framed(false, request))
	}
	a.begin(healthpb.Health_Check_FullMethodName)
	if code, _ := a.outcome(anyCall); code != codes.ResourceExhausted {
		t.Errorf("a fourth check: %v, want ResourceExhausted", code)
	}
}

// greeted reports whether the server goes on with a connection: it sends its settings.
func greeted(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return err
	}
	fr := http2.NewFramer(conn, conn)
	if err := fr.WriteSettings(); err != nil {
		return err
	}
	_, err := fr.ReadFrame()
	return err
}

func dialFrom(t *testing.T, host, addr string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestConnectionsAreBoundedByHostAndInAll(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	addr := listening(t, rpc.ServerConfig{MaxClientConnections: 3, MaxConnections: 4}, rpc.Options{Registry: reg}, &echo{})
	var first net.Conn
	for i := range 3 {
		conn := dialFrom(t, "127.0.0.1", addr)
		if err := greeted(conn); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		first = conn
	}
	if err := greeted(dialFrom(t, "127.0.0.1", addr)); err == nil {
		t.Error("a fourth connection of a host was taken")
	}
	if err := greeted(dialFrom(t, "127.0.0.2", addr)); err != nil {
		t.Errorf("the connection of another host: %v", err)
	}
	if err := greeted(dialFrom(t, "127.0.0.3", addr)); err == nil {
		t.Error("a fifth connection in all was taken")
	}
	first.Close()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for greeted(dialFrom(t, "127.0.0.3", addr)) != nil {
		if time.Now().After(deadline) {
			t.Fatal("no connection is taken after one has ended")
		}
		<-tick.C
	}
	if n := gathered(t, reg, "deltaplane_rpc_refused_total", "reason", "too_many_connections"); n < 2 {
		t.Errorf("%v refusals are counted, want 2 at least", n)
	}
}

func gathered(t *testing.T, reg *prometheus.Registry, name, label, value string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetName() == label && l.GetValue() == value {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	return 0
}

func TestAConnectionThatSaysNothingIsClosedAndGivesItsSeatBack(t *testing.T) {
	t.Parallel()
	addr := listening(t, rpc.ServerConfig{MaxClientConnections: 1, HandshakeTimeout: 50 * time.Millisecond}, rpc.Options{}, &echo{})
	silent := dialFrom(t, "127.0.0.1", addr)
	_ = silent.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, silent); err != nil {
		t.Errorf("the end of a silent connection: %v", err)
	}
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := greeted(dialFrom(t, "127.0.0.1", addr))
		if err == nil {
			return
		}
		if errors.Is(err, context.DeadlineExceeded) || time.Now().After(deadline) {
			t.Fatal(fmt.Errorf("no connection is taken: %w", err))
		}
		<-tick.C
	}
}
