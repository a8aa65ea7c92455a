package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// serving is a `serve` of this process.
type serving struct {
	listen, admin string
	out           *buffer
}

func startServing(t *testing.T, args ...string) *serving {
	t.Helper()
	ports := embeddedtest.Ports(t, 2)
	s := &serving{listen: ports[0], admin: ports[1], out: &buffer{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, append(args, "--listen", s.listen, "--admin-listen", s.admin), streams{In: strings.NewReader(""), Out: s.out, Err: s.out})
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != cli.ExitOK {
			t.Errorf("%v ended with %d:\n%s", args, code, s.out)
		}
	})
	return s
}

// readyz is what the admin port says, and its status; 0 while it is not open.
func (s *serving) readyz(t *testing.T) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.admin+"/readyz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func (s *serving) healthy(t *testing.T) bool {
	t.Helper()
	out, _, code := command(t.Context(), "", "health", s.listen)
	return code == cli.ExitOK && strings.Contains(out, "SERVING")
}

// awaits waits until a service says on its admin port that it waits for a server.
func (s *serving) awaits(t *testing.T, server string) {
	t.Helper()
	until(t, func() bool {
		code, text := s.readyz(t)
		if strings.Contains(text, "hush") {
			t.Errorf("it shows the password:\n%s", text)
		}
		return code == http.StatusServiceUnavailable && strings.Contains(text, server)
	})
	if s.healthy(t) {
		t.Errorf("gRPC health says SERVING:\n%s", s.out)
	}
}

// nobody is an address that nothing listens on, and its port.
func nobody(t *testing.T) (string, int) {
	t.Helper()
	addr := embeddedtest.Ports(t, 1)[0]
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return addr, n
}

func TestServicesThatStartBeforeNATSSaySoAndBecomeReady(t *testing.T) {
	t.Parallel()
	addr, _ := nobody(t)
	api := startUp(t).api[1] // of some cluster, so that the log is all that is missing
	indexer := startServing(t, "serve", "indexer", "--nats-url", "nats://u:hush@"+addr)
	reflector := startServing(t, "serve", "reflector", "--nats-url", "nats://u:hush@"+addr, "--api-url", api)
	for _, s := range []*serving{indexer, reflector} {
		s.awaits(t, "cannot reach NATS at "+addr)
	}
	server, err := embedded.StartNATS(embedded.NATSConfig{Dir: t.TempDir(), Listen: addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	for _, s := range []*serving{indexer, reflector} {
		until(t, func() bool {
			code, _ := s.readyz(t)
			return code == http.StatusOK && s.healthy(t)
		})
	}
	until(t, func() bool {
		out, _, _ := command(t.Context(), "", "get", "nodes", "-o", "keys", "--index-url", indexer.listen)
		return strings.Contains(out, "node-1")
	})
}

func TestAQueueThatStartsBeforeRedisSaysSoAndBecomesReady(t *testing.T) {
	t.Parallel()
	addr, port := nobody(t)
	queue := startServing(t, "serve", "queue", "--redis-url", "redis://"+addr)
	queue.awaits(t, addr)
	embeddedtest.RedisWith(t, embedded.RedisConfig{Port: port})
	until(t, func() bool {
		code, _ := queue.readyz(t)
		return code == http.StatusOK && queue.healthy(t)
	})
	if _, errs, code := command(t.Context(), "", "queue", "ls", "--queue-url", queue.listen); code != cli.ExitOK {
		t.Error(fmt.Sprint("queue ls: ", code, errs))
	}
}
