package rpc

import (
	"errors"
	"io"
	"net"
	"syscall"

	"google.golang.org/grpc/mem"
)

// ReadOnReady reads once there is something to read, into a buffer that it takes
// from the pool only then: an idle connection holds none. The transport reads so
// from connections that have it, and by itself from none but a bare TCP one.
func (g *gatherer) ReadOnReady(size int, pool mem.BufferPool) (buf *[]byte, n int, err error) {
	if g.ready != nil {
		return g.ready.get(size, pool)
	}
	buf = pool.Get(size)
	if n, err = g.Read(*buf); n == 0 && err != nil {
		pool.Put(buf)
		return nil, 0, err
	}
	return buf, n, err
}

// readiness reads from a socket when it is ready. It is for one goroutine.
type readiness struct {
	raw  syscall.RawConn
	read func(fd uintptr) bool // try, made once
	size int
	pool mem.BufferPool
	buf  *[]byte
	n    int
	err  error
}

// newReadiness is nil for what is not a TCP connection.
func newReadiness(conn net.Conn) *readiness {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	r := &readiness{raw: raw}
	r.read = r.try
	return r
}

func (r *readiness) get(size int, pool mem.BufferPool) (*[]byte, int, error) {
	r.size, r.pool = size, pool
	err := r.raw.Read(r.read)
	buf, n := r.buf, r.n
	if err == nil {
		err = r.err
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	r.pool, r.buf, r.n, r.err = nil, nil, 0, nil
	if err != nil && buf != nil {
		pool.Put(buf)
		buf = nil
	}
	return buf, n, err
}

// try reads; false when there is nothing to be read. It uses syscall as package
// net does: with another package's calls the race detector finds races.
func (r *readiness) try(fd uintptr) bool {
	r.buf = r.pool.Get(r.size)
	for {
		if r.n, r.err = syscall.Read(int(fd), *r.buf); !errors.Is(r.err, syscall.EINTR) {
			break
		}
	}
	if r.err == nil {
		return true
	}
	r.pool.Put(r.buf)
	r.buf, r.n = nil, 0
	return !errors.Is(r.err, syscall.EAGAIN)
}
