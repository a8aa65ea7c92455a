package failover

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/test/child"
)

// servers is the log's servers, each a process.
type servers struct {
	t       *testing.T
	url     string
	configs map[string]embedded.NATSConfig
	run     map[string]*child.Process
}

func newServers(t *testing.T) *servers {
	t.Helper()
	configs, url := embeddedtest.NATSConfigs(t, 3)
	s := &servers{t: t, url: url, configs: map[string]embedded.NATSConfig{}, run: map[string]*child.Process{}}
	for _, cfg := range configs {
		s.configs[cfg.Name] = cfg
		s.start(cfg.Name)
	}
	embeddedtest.WaitJetStream(t, url)
	return s
}

func (s *servers) start(name string) {
	s.t.Helper()
	cfg := s.configs[name]
	s.run[name] = child.Start(s.t, role{Name: name, Server: &cfg})
}

// jetStream is a client of the servers, and what ends it.
func (s *servers) jetStream() (js jetstream.JetStream, end func()) {
	s.t.Helper()
	nc, err := nats.Connect(s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	if js, err = jetstream.New(nc); err != nil {
		s.t.Fatal(err)
	}
	return js, nc.Close
}

// leader is the server that leads a stream's group.
func (s *servers) leader(stream string) string {
	s.t.Helper()
	js, end := s.jetStream()
	defer end()
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
		str, err := js.Stream(ctx, stream)
		cancel()
		if err == nil && str.CachedInfo().Cluster != nil && s.run[str.CachedInfo().Cluster.Leader] != nil && len(str.CachedInfo().Cluster.Replicas) == 2 {
			return str.CachedInfo().Cluster.Leader
		}
	}
	s.t.Fatalf("stream %s has no leader", stream)
	return ""
}

// TestAReplicatedLogFailsOverWithItsReflectors is the same on three servers that replicate the log:
// leaders are killed and stopped, and so is the server that leads the log.
func TestAReplicatedLogFailsOverWithItsReflectors(t *testing.T) {
	t.Parallel()
	kills, stops := times(t)
	kills, stops = max(kills/4, 3), stops/4
	s := newServers(t)
	c := newCrew(t, s.url, 3, 3)
	var killed, stopped, servers []time.Duration
	for range kills {
		killed = append(killed, c.kill())
	}
	for range stops {
		stopped = append(stopped, c.pause())
	}
	for range max(kills/10, 1) {
		name := s.leader(pods.StreamName())
		c.w.mu.Lock()
		at := c.w.claimed
		c.w.mu.Unlock()
		began := time.Now()
		s.run[name].Kill()
		if !c.w.until(2*time.Minute, func() bool { return c.w.claimed > at+2*rate }) {
			t.Fatalf("nothing was written after the server %s was killed", name)
		}
		servers = append(servers, time.Since(began))
		s.start(name)
		s.leader(pods.StreamName())
		c.lead()
	}
	t.Logf("leader killed to next change: %s", distribution(killed))
	if len(stopped) > 0 {
		t.Logf("leader stopped to next change: %s", distribution(stopped))
	}
	t.Logf("log's server killed to two seconds' worth of changes: %s", distribution(servers))
	c.judge(kills+stops, len(servers))
}
