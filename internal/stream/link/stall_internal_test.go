package link

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

func TestAServerThatIsMerelySlowKeepsItsConnectionAndOneThatTakesNothingDoesNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout, pieces = 2 * time.Second, 40
		server, client := net.Pipe()
		c := &stallConn{Conn: client, timeout: timeout, unacked: func(net.Conn) int { return 0 }}
		go func() { // slow: half a piece each time, for much longer than the timeout in all
			for range 2 * pieces {
				time.Sleep(timeout - time.Millisecond)
				if _, err := io.ReadFull(server, make([]byte, stallPiece/2)); err != nil {
					t.Error(err)
				}
			}
		}()
		_ = c.SetWriteDeadline(time.Now().Add(time.Nanosecond)) // the client's own, which is for all of it
		if n, err := c.Write(make([]byte, pieces*stallPiece)); err != nil || n != pieces*stallPiece {
			t.Errorf("Write() = %d, %v, want all of it written", n, err)
		}
		if n, err := c.Write(nil); err != nil || n != 0 {
			t.Errorf("Write(nil) = %d, %v", n, err)
		}
		began := time.Now()
		if n, err := c.Write(make([]byte, 2*stallPiece)); !errors.Is(err, os.ErrDeadlineExceeded) || n != 0 || time.Since(began) != timeout {
			t.Errorf("Write() = %d, %v after %v, want a timeout after %v", n, err, time.Since(began), timeout)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Read() = %v, want an error for the reader", err)
		}
		_ = server.Close()
	})
}

// The kernel tells a writer that there is room only when about a third of its buffer is free: over
// a slow link that lasts many times as long as the timeout, though the server takes everything it
// gets.
func TestAServerBehindASlowLinkKeepsItsConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout, drained = 2 * time.Second, 20 * time.Second
		server, client := net.Pipe()
		began := time.Now()
		c := &stallConn{Conn: client, timeout: timeout, unacked: func(net.Conn) int {
			return int(max(drained-time.Since(began), 0)/time.Millisecond) + 1000
		}}
		go func() {
			time.Sleep(drained + timeout - time.Millisecond)
			if _, err := io.ReadFull(server, make([]byte, stallPiece)); err != nil {
				t.Error(err)
			}
		}()
		if n, err := c.Write(make([]byte, stallPiece)); err != nil || n != stallPiece {
			t.Errorf("Write() = %d, %v while the server takes what waits", n, err)
		}
		began = time.Now().Add(-drained)
		if _, err := c.Write(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Write() = %v once the server takes nothing more, want a timeout", err)
		}
		_ = server.Close()
	})
}

// inside is a server in this process.
type inside struct{ conn net.Conn }

func (i inside) InProcessConn() (net.Conn, error) { return i.conn, nil }

func TestAServerInTheSameProcessThatTakesNothingIsLeftToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 2 * time.Second
		server, client := net.Pipe()
		defer func() { _ = server.Close() }()
		d := &stallDialer{timeout: timeout}
		o := nats.Options{CustomDialer: d, InProcessServer: inside{client}}
		if err := d.inProcess(&o); err != nil {
			t.Fatal(err)
		}
		c, err := o.InProcessServer.InProcessConn()
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_ = c.SetWriteDeadline(began.Add(time.Minute)) // the client's own
		if n, err := c.Write(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || n != 0 || time.Since(began) != timeout {
			t.Errorf("Write() = %d, %v after %v, want a timeout after %v", n, err, time.Since(began), timeout)
		}
	})
}
