package chaos

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// A relay stands between clients and a server. It can lose replies: what
// clients send still goes through, nothing comes back, and then the
// connections are cut.
type relay struct {
	listener net.Listener
	target   string

	mu    sync.Mutex // guards what follows
	mute  bool
	links map[*link]bool
}

type link struct{ up, down net.Conn }

func (l *link) close() { _, _ = l.up.Close(), l.down.Close() }

// newRelay forwards connections to target until the test ends.
func newRelay(t *testing.T, target string) *relay {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, target: target, links: map[*link]bool{}}
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
	t.Cleanup(func() { _ = listener.Close(); r.cut(0); group.Wait() })
	return r
}

func (r *relay) addr() string { return r.listener.Addr().String() }

func (r *relay) forward(down net.Conn) {
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
func (r *relay) answer(l *link) {
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

// lose loses replies from now on.
func (r *relay) lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mute = true
}

// cut loses replies for a while and then cuts every connection.
func (r *relay) cut(lose time.Duration) {
	r.lose()
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

func TestARelayLosesReplies(t *testing.T) {
	t.Parallel()
	server, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	heard := make(chan string, 10)
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				b := make([]byte, 10)
				for {
					n, err := c.Read(b)
					if err != nil {
						return
					}
					heard <- string(b[:n])
					_, _ = c.Write(b[:n])
				}
			}()
		}
	}()
	r := newRelay(t, server.Addr().String())
	c, err := net.Dial("tcp", r.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answer := make([]byte, 10)
	if _, err := c.Write([]byte("one")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(answer); err != nil || string(answer[:n]) != "one" {
		t.Fatalf("read %q, %v", answer[:n], err)
	}
	r.lose()
	if _, err := c.Write([]byte("two")); err != nil {
		t.Fatal(err)
	}
	if one, two := <-heard, <-heard; one != "one" || two != "two" {
		t.Errorf("the server heard %q and %q, want both", one, two)
	}
	cut := make(chan struct{})
	go func() { defer close(cut); r.cut(200 * time.Millisecond) }() // in which the answer would come
	if n, err := c.Read(answer); !errors.Is(err, io.EOF) && err == nil {
		t.Errorf("read %q, want the connection cut", answer[:n])
	}
	<-cut
}
