package relay_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/test/relay"
)

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
	r := relay.New(t, server.Addr().String())
	c, err := net.Dial("tcp", r.Addr())
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
	r.Lose()
	if _, err := c.Write([]byte("two")); err != nil {
		t.Fatal(err)
	}
	if one, two := <-heard, <-heard; one != "one" || two != "two" {
		t.Errorf("the server heard %q and %q, want both", one, two)
	}
	cut := make(chan struct{})
	go func() { defer close(cut); r.Cut(200 * time.Millisecond) }() // in which the answer would come
	if n, err := c.Read(answer); !errors.Is(err, io.EOF) && err == nil {
		t.Errorf("read %q, want the connection cut", answer[:n])
	}
	<-cut
}
