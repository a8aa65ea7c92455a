package stream

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
	_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = conn.Write(make([]byte, 64<<20)) // until the peer's buffer and ours are full
	full := unacked(conn)
	if full <= 0 {
		t.Fatalf("unacked() = %d though nobody reads", full)
	}
	go func() { _, _ = io.Copy(io.Discard, peer) }()
	for began := time.Now(); unacked(conn) >= full; time.Sleep(time.Millisecond) {
		if time.Since(began) > 30*time.Second {
			t.Fatal("unacked() does not fall while the peer reads")
		}
	}
	_ = conn.Close()
	if n := unacked(conn); n != 0 {
		t.Errorf("unacked() = %d of a connection that was closed", n)
	}
}
