package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// service is one that commands call, and what it is in gRPC: the first of several tells its health.
type service struct {
	name, flag string
	grpc       []string
}

var services = []service{
	{"index service", "--index-url", []string{indexv1.IndexService_ServiceDesc.ServiceName}},
	{"queue service", "--queue-url", []string{
		queuev1.QueueService_ServiceDesc.ServiceName, queuev1.QueueAdminService_ServiceDesc.ServiceName, queuev1.BackoffService_ServiceDesc.ServiceName,
	}},
	{"reflector service", "--reflector-url", []string{reflectorv1.ReflectorService_ServiceDesc.ServiceName}},
}

// CalledConn is a connection whose failures say which service was expected where, and what answers
// there.
type CalledConn struct {
	*grpc.ClientConn
	target string
	config rpc.DialConfig
	well   atomic.Bool // it has answered: what fails then is no matter of the address
}

// Invoke implements [grpc.ClientConnInterface].
func (c *CalledConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.explain(ctx, method, c.ClientConn.Invoke(ctx, method, args, reply, opts...))
}

// NewStream implements [grpc.ClientConnInterface].
func (c *CalledConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := c.ClientConn.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, c.explain(ctx, method, err)
	}
	return &calledStream{ClientStream: s, c: c, began: ctx, method: method}, nil
}

type calledStream struct {
	grpc.ClientStream
	c      *CalledConn
	began  context.Context //nolint:containedctx // the stream's own ends with it
	method string
}

// RecvMsg implements [grpc.ClientStream].
func (s *calledStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if errors.Is(err, io.EOF) {
		return err
	}
	return s.c.explain(s.began, s.method, err)
}

// explain adds to a call that did not reach its service what may be wrong with the address.
func (c *CalledConn) explain(ctx context.Context, method string, err error) error {
	code := rpc.Code(err)
	elsewhere := code == codes.Unimplemented && strings.Contains(err.Error(), "unknown service")
	away := (code == codes.Unavailable || code == codes.DeadlineExceeded) && rpc.Reason(err) == "" && !c.well.Load()
	if !elsewhere && !away {
		c.well.Store(true)
		return err
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	wanted, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	for _, s := range services {
		if slices.Contains(s.grpc, wanted) {
			return s.misplaced(c, err)
		}
	}
	return err
}

func (s service) misplaced(c *CalledConn, err error) error {
	err = &UnreachableError{fmt.Sprintf("the %s at %s (%s)", s.name, c.target, s.flag), err}
	if found := whatAnswers(c.target, c.config.UseTLS, s); found != "" {
		return &HintError{err, found}
	}
	return err
}

// probeTimeout bounds the looks at what answers at an address, all together.
const probeTimeout = 6 * time.Second

// whatAnswers says what is found at an address where a service was not; empty when that tells
// nobody anything. It sends no token.
func whatAnswers(target string, overTLS bool, wanted service) string {
	if _, _, err := net.SplitHostPort(target); err != nil {
		return ""
	}
	end := time.Now().Add(probeTimeout)
	conn, err := net.DialTimeout("tcp", target, probeTimeout) //nolint:noctx // bounded by its own time
	if err != nil {
		return `nothing answers there; "deltaplane up" runs every service, "deltaplane serve" one`
	}
	_ = conn.Close()
	for _, try := range []bool{overTLS, !overTLS} {
		found := healthAt(target, try, end)
		switch {
		case found == "":
		case try && !overTLS:
			return found + " answers there over TLS: give --tls, and --tls-ca for its authority"
		case !try && overTLS:
			return found + " answers there in plain text: leave out --tls and its like"
		case found == "the "+wanted.name:
			return "" // the message itself says what it has against the call
		default:
			return found + " answers there"
		}
	}
	return greeting(target, end)
}

// healthAt names the service whose health a gRPC server tells; empty when no gRPC server answers.
func healthAt(target string, overTLS bool, end time.Time) string {
	creds := insecure.NewCredentials()
	if overTLS {
		creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // nothing secret is sent, and the answer only worded
	}
	conn, err := grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(creds))
	if err != nil {
		return ""
	}
	defer conn.Close()
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	client := grpc_health_v1.NewHealthClient(conn)
	found := ""
	for _, s := range services {
		_, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: s.grpc[0]})
		switch rpc.Code(err) {
		case codes.OK:
			return "the " + s.name
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown:
			return found
		}
		found = "another gRPC server"
	}
	return found
}

// greeting names servers that speak something else than gRPC. One that has said nothing by the end
// may be of any kind.
func greeting(target string, end time.Time) string {
	conn, err := net.DialTimeout("tcp", target, time.Until(end)) //nolint:noctx // bounded by its own time
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(end)
	_, _ = fmt.Fprintf(conn, "GET / HTTP/1.0\r\n\r\n")
	first := make([]byte, 8)
	n, _ := io.ReadFull(conn, first)
	switch text := string(first[:n]); {
	case text == "" && !time.Now().Before(end):
		return "something takes connections there and does not answer"
	case strings.HasPrefix(text, "HTTP/"):
		return "an HTTP server answers there, such as an API server or an admin page"
	case strings.HasPrefix(text, "INFO "):
		return "a NATS server answers there"
	case strings.HasPrefix(text, "-ERR") || strings.HasPrefix(text, "-NOAUTH"):
		return "a Redis server answers there"
	}
	return "something answers there that is no gRPC server"
}

// UnreachableError marks a server that could not be reached at the start.
type UnreachableError struct {
	What string
	Err  error
}

func (e *UnreachableError) Error() string { return fmt.Sprintf("cannot reach %s: %v", e.What, e.Err) }

func (e *UnreachableError) Unwrap() error { return e.Err }
