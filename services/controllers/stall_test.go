package controllers

import (
	"net"
	"sync"
	"testing"
)

// pipe passes connections on to a server, and can stop passing anything on while
// they stay open: a server that hangs.
type pipe struct {
	lis    net.Listener
	target string
	all    sync.WaitGroup

	mu    sync.Mutex // guards gate and conns
	gate  chan struct{}
	conns []net.Conn
}

func newPipe(t *testing.T, target string) *pipe {
	t.Helper()
	p := &pipe{lis: need(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")), target: target, gate: make(chan struct{})}
	close(p.gate)
	p.all.Go(func() { p.accept(t) })
	t.Cleanup(func() {
		p.open()
		_ = p.lis.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.all.Wait()
	})
	return p
}

func (p *pipe) accept(t *testing.T) {
	for {
		in, err := p.lis.Accept()
		if err != nil {
			return
		}
		out, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		p.all.Go(func() { p.copy(in, out) })
		p.all.Go(func() { p.copy(out, in) })
	}
}

func (p *pipe) copy(dst, src net.Conn) {
	defer dst.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		p.mu.Lock()
		gate := p.gate
		p.mu.Unlock()
		<-gate
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return // io.EOF or closed
		}
	}
}

// shut stops everything from passing; open lets it go on where it was.
func (p *pipe) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gate = make(chan struct{})
}

func (p *pipe) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gate:
	default:
		close(p.gate)
	}
}
