package embeddedtest

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/internal/embedded"
)

// NATSConfigs are n servers of one cluster, each with ports and a directory of its
// own, and the URL of all of them.
func NATSConfigs(t testing.TB, n int) (configs []embedded.NATSConfig, url string) {
	t.Helper()
	addrs := Ports(t, 2*n)
	for i := range n {
		configs = append(configs, embedded.NATSConfig{
			Name: "n" + strconv.Itoa(i+1), Dir: t.TempDir(), Listen: addrs[i], ClusterListen: addrs[n+i], Cluster: addrs[n:],
		})
	}
	return configs, "nats://" + strings.Join(addrs[:n], ",nats://")
}

// NATSSet is the servers of a cluster in this process.
type NATSSet struct {
	URL string

	t       testing.TB
	configs []embedded.NATSConfig
	servers []*embedded.NATS
}

// NATSCluster starts n servers that form a cluster and waits until a stream can be
// kept by all of them. When they elect another leader later, it refuses streams
// until it has heard of every server: what creates one is to try again.
func NATSCluster(t testing.TB, n int) *NATSSet {
	t.Helper()
	s := &NATSSet{t: t, servers: make([]*embedded.NATS, n)}
	s.configs, s.URL = NATSConfigs(t, n)
	t.Cleanup(func() {
		for i := range s.servers {
			s.Stop(i)
		}
	})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { s.Start(i) })
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	WaitJetStream(t, s.URL)
	s.waitPeers()
	return s
}

// waitPeers waits until each server is known to be there: JetStream answers as soon
// as most are.
func (s *NATSSet) waitPeers() {
	s.t.Helper()
	nc, err := nats.Connect(s.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	defer nc.Close()
	js, err := nc.JetStream()
	if err != nil {
		s.t.Fatal(err)
	}
	const probe = "embeddedtest-probe"
	wait(s.t, "every server of the cluster", 60*time.Second, func() bool {
		_, err := js.AddStream(&nats.StreamConfig{Name: probe, Replicas: len(s.servers), Storage: nats.MemoryStorage})
		return err == nil
	})
	wait(s.t, "the end of a probe", 60*time.Second, func() bool {
		err := js.DeleteStream(probe)
		return err == nil || errors.Is(err, nats.ErrStreamNotFound)
	})
}

// Start starts a server, with what it has on disk. It does nothing to one that runs.
func (s *NATSSet) Start(i int) {
	if s.servers[i] != nil {
		return
	}
	n, err := embedded.StartNATS(s.configs[i])
	if err != nil {
		s.t.Error(err)
		return
	}
	s.servers[i] = n
}

// Stop stops a server. It does nothing to one that is down.
func (s *NATSSet) Stop(i int) {
	if s.servers[i] != nil {
		s.servers[i].Stop()
		s.servers[i] = nil
	}
}

// WaitJetStream waits until JetStream answers at a URL.
func WaitJetStream(t testing.TB, url string) {
	t.Helper()
	wait(t, "JetStream", 60*time.Second, func() bool {
		nc, err := nats.Connect(url)
		if err != nil {
			return false
		}
		defer nc.Close()
		js, err := nc.JetStream()
		if err != nil {
			return false
		}
		info, err := js.AccountInfo(nats.MaxWait(time.Second))
		return err == nil && info != nil
	})
}
