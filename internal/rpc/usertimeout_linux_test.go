package rpc

import (
	"context"
	"net"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/health/grpc_health_v1"
)

type keptListener struct {
	net.Listener
	conns chan *net.TCPConn
}

func (l keptListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.conns <- conn.(*net.TCPConn)
	}
	return conn, err
}

// Without it a peer that is gone would be found out by the next ping alone, and
// what it was sent be kept until then.
func TestConnectionsHaveTheTimeoutOfKeepalive(t *testing.T) {
	t.Parallel()
	srv, err := NewServer(ServerConfig{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	kept := keptListener{lis, make(chan *net.TCPConn, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, kept) }()
	client, err := Dial(lis.Addr().String(), DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := grpc_health_v1.NewHealthClient(client).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	raw, err := (<-kept.conns).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	var optErr error
	if err := raw.Control(func(fd uintptr) { got, optErr = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); err != nil || optErr != nil {
		t.Fatal(err, optErr)
	}
	if want := int(srv.cfg.keepalive().Timeout.Milliseconds()); got != want {
		t.Errorf("TCP_USER_TIMEOUT = %d ms, want %d", got, want)
	}
	_ = client.Close()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
