package embedded_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNATSKeepsStreamsOverARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for run := range 2 {
		start := time.Now()
		n, err := embedded.StartNATS(embedded.NATSConfig{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("started in %v", time.Since(start))
		if got := n.URL(); got != "" {
			t.Errorf("URL() = %q, want none without a socket", got)
		}
		nc, err := nats.Connect("", n.InProcess())
		if err != nil {
			t.Fatal(err)
		}
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		s, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.CachedInfo().State.Msgs; got != uint64(run) {
			t.Errorf("run %d: stream holds %d messages, want %d", run, got, run)
		}
		if _, err := js.Publish(t.Context(), "s.a", make([]byte, 7<<20)); err != nil {
			t.Errorf("publish 7 MiB: %v", err)
		}
		nc.Close()
		n.Stop()
		n.Stop()
	}
}

func TestNATSListensForOtherProcessesOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	n := embeddedtest.NATS(t)
	nc, err := nats.Connect(n.URL())
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	if _, err := embedded.StartNATS(embedded.NATSConfig{Dir: t.TempDir(), Listen: "0.0.0.0:0"}); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("listening on every interface: error %v, want a refusal that names loopback", err)
	}
	if _, err := embedded.StartNATS(embedded.NATSConfig{}); err == nil {
		t.Error("without a directory: no error")
	}
}

func TestRedisAnswersAndKeepsWhatItIsToldTo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for run, want := range []string{"$-1", "$1"} {
		r, err := embedded.StartRedisWith(t.Context(), embedded.RedisConfig{Dir: dir, Persist: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := redis(t, r.Addr(), "GET k"); got != want {
			t.Errorf("run %d: GET answers %q, want %q", run, got, want)
		}
		redis(t, r.Addr(), "SET k v")
		r.Stop()
		r.Stop()
		select {
		case <-r.Done():
		default:
			t.Error("Done is open after Stop")
		}
	}
}

func redis(t *testing.T, addr, command string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "%s\r\n", command)
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// TestRedisIsNotTheOneThatHasThePort: that one answers at once.
func TestRedisIsNotTheOneThatHasThePort(t *testing.T) {
	t.Parallel()
	first, err := embedded.StartRedis(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(first.Stop)
	_, text, _ := net.SplitHostPort(first.Addr())
	port, _ := strconv.Atoi(text)
	second, err := embedded.StartRedisWith(t.Context(), embedded.RedisConfig{Dir: t.TempDir(), Port: port})
	if err == nil {
		second.Stop()
		t.Fatal("a second Redis is said to serve the port of the first")
	}
	if !strings.Contains(err.Error(), "in use") {
		t.Errorf("error %q, want that the port is in use", err)
	}
}

func TestRedisFailsWithWhatItSaid(t *testing.T) {
	t.Parallel()
	_, err := embedded.StartRedisWith(t.Context(), embedded.RedisConfig{Dir: t.TempDir(), Args: []string{"--no-such-option", "1"}})
	if err == nil || !strings.Contains(err.Error(), "ended at once") {
		t.Errorf("bad option: error %v, want one that says it ended", err)
	}
}

func TestRedisMissingSaysWhatToInstall(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := embedded.StartRedis(t.Context(), t.TempDir())
	if !errors.Is(err, embedded.ErrNoRedis) || !strings.Contains(err.Error(), "apt-get install redis-server") {
		t.Errorf("error %v, want ErrNoRedis with the package", err)
	}
}
