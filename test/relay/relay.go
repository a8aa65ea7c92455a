// Package relay cuts the connections of a test's processes, and loses what they would hear.
package relay

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Relay stands between clients and a server. It can lose replies: what clients send still goes
// through, nothing comes back, and then the connections are cut. Its methods are safe for
// concurrent use.
type Relay struct {
	listener net.Listener
	target   string

	mu    sync.Mutex // guards what follows
	mute  bool
	links map[*link]bool
}

type link struct{ up, down net.Conn }

func (l *link) close() { _, _ = l.up.Close(), l.down.Close() }

// New forwards connections to target, a host:port, until the test ends. A connection is closed when
// the target does not take it within a second.
func New(t testing.TB, target string) *Relay {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{listener: listener, target: target, links: map[*link]bool{}}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			down, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() { r.forward(down) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); r.Cut(0); group.Wait() })
	return r
}

// Addr is where clients connect, host:port.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

func (r *Relay) forward(down net.Conn) {
	up, err := net.DialTimeout("tcp", r.target, time.Second)
	if err != nil {
		_ = down.Close()
		return
	}
	l := &link{up: up, down: down}
	r.mu.Lock()
	r.links[l] = true
	r.mu.Unlock()
	var group sync.WaitGroup
	group.Go(func() { _, _ = io.Copy(up, down); l.close() })
	group.Go(func() { r.answer(l); l.close() })
	group.Wait()
	r.mu.Lock()
	delete(r.links, l)
	r.mu.Unlock()
}

// answer copies what comes back, unless it is to be lost.
func (r *Relay) answer(l *link) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := l.up.Read(buffer)
		if err != nil {
			return
		}
		r.mu.Lock()
		mute := r.mute
		r.mu.Unlock()
		if mute {
			continue
		}
		if _, err := l.down.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// Lose loses replies from now on.
func (r *Relay) Lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mute = true
}

// Cut loses replies for a while and then cuts every connection.
func (r *Relay) Cut(lose time.Duration) {
	r.Lose()
	if lose > 0 {
		<-time.After(lose)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mute = false
	for l := range r.links {
		l.close()
	}
}
