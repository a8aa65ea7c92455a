package prober

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// health asks a server for its health by gRPC's protocol, without TLS, as the kubelet does.
func health(ctx context.Context, to, service string, timeout time.Duration) Answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+to, grpc.WithUserAgent(userAgent), grpc.WithNoProxy(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) { return dial(ctx, "tcp", to) }))
	if err != nil {
		return failure(fmt.Sprintf("error: failed to connect service at %q: %v", to, err))
	}
	defer func() { _ = conn.Close() }()
	// A server that is about to listen gets the whole timeout.
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
	switch status.Code(err) {
	case codes.OK:
	case codes.Unimplemented:
		return failure("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): " + status.Convert(err).Message())
	case codes.DeadlineExceeded:
		return failure(fmt.Sprintf("timeout: health rpc did not complete within %v: %s", timeout, status.Convert(err).Message()))
	default:
		return failure(fmt.Sprintf("error: health rpc probe failed: %v", err))
	}
	if s := answer.GetStatus(); s != grpc_health_v1.HealthCheckResponse_SERVING {
		return failure(fmt.Sprintf("service unhealthy (responded with %q)", s))
	}
	return success()
}
