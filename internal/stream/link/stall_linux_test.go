package link

import (
	"io"
	"net"
	"testing"
	"time"
)

func TestWhatTheKernelHasLeftToSendIsKnown(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if n := unacked(conn); n != 0 {
		t.Errorf("unacked() = %d before anything was written", n)
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = conn.Write(make([]byte, 32<<20)) // more than the peer's buffer and ours hold
	}()
	until := func(what string, ok func(int) bool) {
		for began := time.Now(); !ok(unacked(conn)); time.Sleep(time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatalf("unacked() = %d %s", unacked(conn), what)
			}
		}
	}
	until("though nobody reads", func(n int) bool { return n > 0 })
	go func() { _, _ = io.Copy(io.Discard, peer) }()
	<-written
	until("once the peer has read everything", func(n int) bool { return n == 0 })
	_ = conn.Close()
	if n := unacked(conn); n != 0 {
		t.Errorf("unacked() = %d of a connection that was closed", n)
	}
}
