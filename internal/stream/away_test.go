package stream_test

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// guarded starts a server at an address with one user, u.
func guarded(t *testing.T, addr, password string) *server.Server {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return userServer(t, host, n, &server.User{Username: "u", Password: password})
}

func TestAConnectionThatRetriesIsThereOnceItsServerIs(t *testing.T) {
	t.Parallel()
	addr := embeddedtest.Ports(t, 1)[0]
	if _, err := stream.Connect(t.Context(), stream.Config{URL: addr}); !errors.Is(err, nats.ErrNoServers) {
		t.Errorf("without Retry: %v, want that there is no server", err)
	}
	var log text
	c := connect(t, "nats://u:right@"+addr, func(cfg *stream.Config) { cfg.Retry, cfg.Log = true, slog.New(slog.NewTextHandler(&log, nil)) })
	health := make(chan bool, 10)
	following := make(chan struct{})
	go func() {
		defer close(following)
		c.FollowHealth(t.Context(), func(up bool) { health <- up })
	}()
	t.Cleanup(func() { <-following })
	if <-health {
		t.Error("it is up without a server")
	}
	eventually(t, "what it waits for", func() bool {
		err := c.Away()
		return err != nil && strings.Contains(err.Error(), "cannot reach NATS at "+addr) && strings.Contains(err.Error(), "refused") && !strings.Contains(err.Error(), "right")
	})
	if _, err := c.Collections(t.Context()); !errors.Is(err, stream.ErrUnavailable) {
		t.Errorf("meanwhile: %v, want that the log is unavailable", err)
	}
	reconnected := c.Reconnected()
	guarded(t, addr, "right")
	if !<-health || c.Away() != nil {
		t.Errorf("with a server: %v", c.Away())
	}
	<-reconnected
	put(t, write(t, c, stream.WriterConfig{Term: 1}), pod("p", 1))
	if log.count("cannot reach NATS yet") != 1 || log.count("connected to the log") != 1 || log.count("right") > 0 {
		t.Errorf("the log says\n%s", &log.buf)
	}
}

func TestARefusalIsSaidAndHealsWhenThePasswordIsRight(t *testing.T) {
	t.Parallel()
	addr := embeddedtest.Ports(t, 1)[0]
	file := filepath.Join(t.TempDir(), "password")
	set := func(password string) {
		if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set("wrong")
	first := guarded(t, addr, "right")
	options, err := stream.Security{Username: "u", PasswordFile: file}.Options()
	if err != nil {
		t.Fatal(err)
	}
	var log text
	c := connect(t, addr, func(cfg *stream.Config) {
		cfg.Retry, cfg.Options, cfg.Log = true, options, slog.New(slog.NewTextHandler(&log, nil))
	})
	refused := func() bool { return errors.Is(c.Away(), nats.ErrAuthorization) }
	eventually(t, "a refusal", refused)
	eventually(t, "a line of it", func() bool { return log.count("uthorization") > 0 })
	set("right")
	eventually(t, "a connection", func() bool { return c.Away() == nil })

	// Later too: the server has its new password before this side has.
	first.Shutdown()
	first.WaitForShutdown()
	second := guarded(t, addr, "new")
	eventually(t, "a refusal", refused)
	eventually(t, "several attempts", func() bool {
		seen, err := second.Varz(nil)
		return err == nil && seen.TotalConnections > 4
	})
	set("new")
	eventually(t, "a connection", func() bool { return c.Away() == nil })
	if n := log.count("uthorization"); n > 4 {
		t.Errorf("%d lines of refusals:\n%s", n, &log.buf)
	}
}
