package link

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// stallDialer dials connections that end when the server takes nothing for timeout. The client's
// own limit is for a whole write, of which the largest has many megabytes: it would have to be a
// minute, and for as long everything that uses the connection waits for its lock, with no regard to
// contexts. A leader would notice neither that it lost its lease nor that it was stopped.
type stallDialer struct {
	timeout time.Duration
	last    atomic.Pointer[stallConn]
}

// Dial implements nats.CustomDialer.
func (d *stallDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, nats.DefaultTimeout)
	if err != nil {
		return nil, err
	}
	c := &stallConn{Conn: conn, timeout: d.timeout, unacked: unacked}
	d.last.Store(c)
	return c, nil
}

// taken is how many bytes the other side took of the last connection, and how many wait for it in
// the kernel, as far as that tells; 0 of each when the connection was not dialed here.
func (d *stallDialer) taken() (bytes, wait int64) {
	c := d.last.Load()
	if c == nil {
		return 0, 0
	}
	wait = int64(c.unacked(c.Conn))
	return c.written.Load() - wait, wait
}

// inProcess is an option for connections within the process, which are not dialed.
func (d *stallDialer) inProcess(o *nats.Options) error {
	if o.InProcessServer != nil && o.CustomDialer == d {
		o.InProcessServer = stallServer{d.timeout, o.InProcessServer}
	}
	return nil
}

// stallServer does for connections within the process what stallDialer does for others.
type stallServer struct {
	timeout time.Duration
	server  nats.InProcessConnProvider
}

// InProcessConn implements nats.InProcessConnProvider.
func (s stallServer) InProcessConn() (net.Conn, error) {
	conn, err := s.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	return &stallConn{Conn: conn, timeout: s.timeout, unacked: unacked}, nil
}

// stallConn gives each piece of a write deadlines of its own: a slow server is waited for, one that
// takes nothing is not.
type stallConn struct {
	net.Conn
	timeout time.Duration
	// unacked is how many bytes wait in the kernel for the other side's; 0 when that is not known.
	unacked func(net.Conn) int
	written atomic.Int64
}

// stallPiece is small enough for a slow link to take it in time.
const stallPiece = 16 << 10

// Write writes p in pieces. After a timeout the connection is closed, so that what waits to read
// from it ends too. It looks twice in each timeout: the kernel lets a writer go on only once there
// is room for a large part of its buffer, over a slow link long after the server took something.
func (c *stallConn) Write(p []byte) (int, error) {
	written, idle, waits := 0, 0, 0
	for written < len(p) {
		piece := p[written:min(written+stallPiece, len(p))]
		if err := c.Conn.SetWriteDeadline(time.Now().Add(c.timeout / looks)); err != nil {
			return written, err
		}
		n, err := c.Conn.Write(piece)
		written += n
		c.written.Add(int64(n))
		if err == nil {
			idle = 0
			continue
		}
		before := waits
		waits = c.unacked(c.Conn)
		if idle++; n > 0 || waits < before { // it took something
			idle = 0
		}
		if idle == looks || !errors.Is(err, os.ErrDeadlineExceeded) {
			_ = c.Conn.Close()
			return written, err
		}
	}
	return written, nil
}

// looks is how often a write that does not end is looked at in one timeout.
const looks = 2

// SetWriteDeadline does nothing: the deadline is that of each piece.
func (c *stallConn) SetWriteDeadline(time.Time) error { return nil }
