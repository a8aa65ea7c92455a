package rpc

import (
	"net"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that is wrapped
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
)

// This file is where the server writes to connections itself. grpc-go copies
// every answer into a buffer of 32 KB and writes that; the copy and the many
// writes are a fifth of what an answer of 150 KB costs. Told to have no buffer,
// it hands over every piece at once, and pieces that never change are then
// written from where they are, by one system call for many of them.

// What is not copied, see [Options].Gather: pieces of at least LentFrom bytes, in
// messages of at least LentIn.
const (
	LentFrom = 2 << 10
	LentIn   = 12 << 10
)

const (
	// mostGathered is when a connection is written to without waiting for more; so
	// it is when copies fill a chunk. While a write is under way, which may last as
	// long as the other end likes, no more than a chunk is gathered.
	mostGathered = 256 << 10
	chunkSize    = 32 << 10
	// lastWords is how long a connection that is closed may take for what is
	// gathered: as a rule it goes to the socket's buffer at once.
	lastWords = time.Second
)

// gatherOptions are those of a server whose connections gather. What grpc-go
// compresses must not be used again while it is lent, nor what it encodes: its
// own codec does so, and one client would get what is another's.
func gatherOptions(wait func(pending int) bool) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(gatherCreds{insecure.NewCredentials(), wait}), grpc.WriteBufferSize(0), experimental.BufferPool(mem.NopBufferPool{}),
		grpc.ForceServerCodecV2(freshCodec{encoding.GetCodecV2("proto")}),
	}
}

// freshCodec encodes to memory that is not used again. It serves where the
// options name no codec that keeps the contract of [Options].Gather.
type freshCodec struct{ encoding.CodecV2 }

func (c freshCodec) Marshal(v any) (mem.BufferSlice, error) {
	parts, err := c.CodecV2.Marshal(v)
	if err != nil {
		return nil, err
	}
	defer parts.Free()
	return mem.BufferSlice{mem.SliceBuffer(parts.Materialize())}, nil
}

// gatherCreds makes connections gather. A handshake is where that can be done:
// connections are accepted as they are, and grpc-go gives TCP its timeouts.
type gatherCreds struct {
	credentials.TransportCredentials
	wait func(pending int) bool
}

func (c gatherCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return newGatherer(conn, c.wait), nil, nil
}

func (c gatherCreds) Clone() credentials.TransportCredentials { return c }

// gatherer is a connection that gathers what is written to it and writes it
// when the transport has nothing more to write. One goroutine may write at a
// time. An error of the connection is returned by a later write.
type gatherer struct {
	net.Conn
	wait  func(pending int) bool
	ready *readiness

	mu      sync.Mutex
	written sync.Cond // signals the end of a write
	next    *gathered // nil without any
	rest    int       // bytes that the frame's pieces still have
	large   bool      // the frame is
	flushes bool      // a goroutine will write what is gathered
	writing bool
	closed  bool
	err     error
}

// gathered is what one write takes. An idle connection has none.
type gathered struct {
	bufs   net.Buffers
	out    net.Buffers // of bufs, what is not written yet
	chunks []*[]byte   // hold the copies
	copied []byte      // in the last of them
	sealed int         // bytes of copied that are in bufs
	size   int
}

var (
	gatheredPool = sync.Pool{New: func() any { return &gathered{} }}
	chunkPool    = sync.Pool{New: func() any { b := make([]byte, chunkSize); return &b }}
)

func newGatherer(conn net.Conn, wait func(int) bool) *gatherer {
	g := &gatherer{Conn: conn, wait: wait, ready: newReadiness(conn)}
	g.written.L = &g.mu
	return g
}

// Write takes a piece of what the transport writes: the head of a data frame, a
// piece of such a frame, or any other frame as a whole.
func (g *gatherer) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.writing && g.full() && g.err == nil && !g.closed {
		g.written.Wait()
	}
	switch {
	case g.err != nil:
		return 0, g.err
	case g.closed:
		return 0, net.ErrClosed
	}
	if g.next == nil {
		g.next = gatheredPool.Get().(*gathered)
	}
	if g.lent(p) {
		g.next.lend(p)
	} else {
		g.next.copy(p)
	}
	switch {
	case g.full() && !g.writing:
		g.write()
		return len(p), g.err
	case !g.flushes:
		g.flushes = true
		go g.flush()
	}
	return len(p), nil
}

// full reports whether no more is to be gathered.
func (g *gatherer) full() bool {
	switch {
	case g.next == nil:
		return false
	case g.writing:
		return g.next.size >= chunkSize
	}
	return g.next.size >= mostGathered || len(g.next.chunks) > 1
}

const (
	frameHead = 9 // length in the first three bytes, then the type
	dataFrame = 0
)

// lent follows the frames and tells whether a piece is one that never changes.
// Anything that is not written as the transport is known to write is copied.
func (g *gatherer) lent(p []byte) bool {
	switch {
	case g.rest >= len(p):
		g.rest -= len(p)
		return g.large && len(p) >= LentFrom
	case g.rest == 0 && len(p) == frameHead && p[3] == dataFrame:
		g.rest = int(p[0])<<16 | int(p[1])<<8 | int(p[2])
		g.large = g.rest >= LentIn // a message's last frame may be short, and is copied then
	default:
		g.rest = 0
	}
	return false
}

// flush writes what is gathered, once nobody adds to it any more who is ready to
// run: a system call is a third of what a small answer costs.
func (g *gatherer) flush() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for seen := 0; g.next != nil && g.next.size != seen && g.wait(g.next.size); {
		seen = g.next.size
		g.mu.Unlock()
		runtime.Gosched()
		g.mu.Lock()
	}
	for g.writing {
		g.written.Wait()
	}
	g.flushes = false
	g.write()
}

// write writes what is gathered. It is called with the lock, which it gives up
// meanwhile.
func (g *gatherer) write() {
	if g.next == nil || g.err != nil {
		return
	}
	now := g.next
	g.next, g.writing = nil, true
	g.mu.Unlock()
	err := now.writeTo(g.Conn)
	g.mu.Lock()
	g.writing = false
	if g.err == nil {
		g.err = err
	}
	g.written.Broadcast()
}

// Close lets no more be written and closes the connection: at once when nothing
// is gathered, otherwise when the other end has taken that, or after lastWords.
// Reads go on until then: a socket that is closed with something unread is reset,
// and the last words may be lost.
func (g *gatherer) Close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return net.ErrClosed
	}
	g.closed = true
	g.written.Broadcast()
	idle := !g.writing && g.next == nil || g.err != nil
	g.mu.Unlock()
	if idle {
		return g.Conn.Close()
	}
	_ = g.SetWriteDeadline(time.Now().Add(lastWords))
	go func() { // a server that stops closes its connections one by one
		g.mu.Lock()
		for g.writing {
			g.written.Wait()
		}
		g.write()
		g.mu.Unlock()
		_ = g.Conn.Close()
	}()
	return nil
}

// writeTo writes it all; w is given back.
func (w *gathered) writeTo(conn net.Conn) (err error) {
	w.seal()
	if w.out = w.bufs; len(w.out) == 1 {
		_, err = conn.Write(w.out[0])
	} else {
		_, err = w.out.WriteTo(conn)
	}
	for _, c := range w.chunks {
		chunkPool.Put(c)
	}
	clear(w.bufs)
	clear(w.chunks)
	*w = gathered{bufs: w.bufs[:0], chunks: w.chunks[:0]}
	gatheredPool.Put(w)
	return err
}

func (w *gathered) lend(p []byte) {
	w.seal()
	w.bufs = append(w.bufs, p)
	w.size += len(p)
}

func (w *gathered) copy(p []byte) {
	w.size += len(p)
	for len(p) > 0 {
		if len(w.copied) == cap(w.copied) {
			w.seal()
			c := chunkPool.Get().(*[]byte)
			w.chunks = append(w.chunks, c)
			w.copied, w.sealed = (*c)[:0], 0
		}
		n := min(len(p), cap(w.copied)-len(w.copied))
		w.copied = append(w.copied, p[:n]...)
		p = p[n:]
	}
}

// seal adds to bufs what was copied since.
func (w *gathered) seal() {
	if w.sealed < len(w.copied) {
		w.bufs = append(w.bufs, w.copied[w.sealed:])
		w.sealed = len(w.copied)
	}
}
