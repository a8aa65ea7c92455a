// Package embeddedtest starts the embedded servers for a test and stops them
// when it ends.
//
//   - [NATS] and [Redis] are one server each.
//   - [NATSCluster] is servers that replicate what they store; [NATSConfigs] are
//     those of a test that starts them as processes.
//   - [DurableRedis] is a [Node]: a Redis that is killed and started again at
//     its address with what it acknowledged, by Kill and Start.
//   - [Sentinel] is a master, replicas and three sentinels; Fail kills the
//     master and waits for the next one.
//   - [Cluster] is masters that share the slots, each a [Node].
//   - [Alone] keeps tests apart that share a cluster.
//
// The servers are those of the variable DELTAPLANE_REDIS_SERVER when it is set,
// the path of a redis-server or valkey-server; else redis-server on PATH.
package embeddedtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/deltaplane/deltaplane/internal/embedded"
)

// Binary is the server that DELTAPLANE_REDIS_SERVER names, empty for the one on
// PATH.
func Binary() string { return os.Getenv("DELTAPLANE_REDIS_SERVER") }

// Redis starts a redis-server for t, with further arguments. Without one on
// PATH the test fails, and says what to install.
func Redis(t testing.TB, args ...string) *embedded.Redis {
	t.Helper()
	return RedisWith(t, embedded.RedisConfig{Args: args})
}

// RedisWith is Redis with every choice; Dir and Binary have defaults.
func RedisWith(t testing.TB, cfg embedded.RedisConfig) *embedded.Redis {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "redis")
	}
	if cfg.Binary == "" {
		cfg.Binary = Binary()
	}
	r, err := embedded.StartRedisWith(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

// NATS starts a NATS server for t that other processes can reach too.
func NATS(t testing.TB) *embedded.NATS {
	t.Helper()
	n, err := embedded.StartNATS(embedded.NATSConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	return n
}
