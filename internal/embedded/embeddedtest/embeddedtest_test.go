package embeddedtest_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

func TestANodeKeepsItsDataOverAKill(t *testing.T) {
	t.Parallel()
	n := embeddedtest.DurableRedis(t)
	n.Do("SET", "k", "v")
	n.Kill()
	n.Start()
	if got := n.Do("GET", "k"); got != "v" {
		t.Errorf("after kill and start: %v", got)
	}
}

func TestASentinelSetReplacesItsMaster(t *testing.T) {
	t.Parallel()
	start := time.Now()
	s := embeddedtest.Sentinel(t, 2)
	t.Logf("started in %v", time.Since(start))
	s.Master().Do("SET", "k", "v")
	s.WaitReplicas(2)
	start = time.Now()
	was, is := s.Fail()
	t.Logf("failed over in %v", time.Since(start))
	if got := is.Do("GET", "k"); got != "v" {
		t.Errorf("on the new master: %v", got)
	}
	is.Do("SET", "k", "w")
	s.WaitReplicas(1) // a slow machine may fail over once more
	was.Start()
	s.WaitReplicas(2)
	if got := was.Do("GET", "k"); got != "w" {
		t.Errorf("on the old master, now a replica: %v", got)
	}
}

func TestAClusterServesEverySlotAndMovesThem(t *testing.T) {
	t.Parallel()
	start := time.Now()
	c := embeddedtest.Cluster(t, 3)
	t.Logf("started in %v", time.Since(start))
	from := c.Of("k")
	from.Do("SET", "k", "v")
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	slot, _ := from.Do("CLUSTER", "KEYSLOT", "k").(int64)
	c.Move(int(slot), from, to)
	if c.Of("k") != to || to.Do("GET", "k") != "v" {
		t.Error("the slot did not move with its key")
	}
	to.Kill()
	to.Start()
	c.Wait()
	if got := to.Do("GET", "k"); got != "v" {
		t.Errorf("after a restart of the node: %v", got)
	}
}

func TestTestsAreAloneWithAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	lock := func() error { // as another process would
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	for range 2 {
		t.Run("", func(t *testing.T) {
			t.Cleanup(func() {
				if err := lock(); err != nil {
					t.Errorf("after the test: %v", err)
				}
			})
			embeddedtest.Alone(t, file)
			t.Cleanup(func() {
				if err := lock(); !errors.Is(err, syscall.EWOULDBLOCK) {
					t.Errorf("another was let in: %v", err)
				}
			})
		})
	}
}

func TestANATSClusterKeepsWhatMostOfItsServersHave(t *testing.T) {
	t.Parallel()
	start := time.Now()
	s := embeddedtest.NATSCluster(t, 3)
	t.Logf("started in %v", time.Since(start))
	nc, err := nats.Connect(s.URL, nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	// A server that has just become the leader may not know yet what the others have room for.
	try := func(call func() error) {
		t.Helper()
		for deadline := time.Now().Add(60 * time.Second); ; {
			err := call()
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	var kv jetstream.KeyValue
	try(func() (err error) {
		kv, err = js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b", Replicas: 3})
		return err
	})
	put := func(key string) {
		t.Helper()
		try(func() error {
			_, err := kv.Put(t.Context(), key, []byte("v"))
			return err
		})
	}
	put("k")
	s.Stop(0)
	put("l")
	s.Start(0)
	for _, key := range []string{"k", "l"} {
		var e jetstream.KeyValueEntry
		try(func() (err error) {
			e, err = kv.Get(t.Context(), key)
			if errors.Is(err, jetstream.ErrKeyNotFound) {
				t.Fatalf("%s is lost after a server went and came", key)
			}
			return err
		})
		if string(e.Value()) != "v" {
			t.Errorf("%s after a server went and came: %q", key, e.Value())
		}
	}
}
