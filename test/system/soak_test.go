package system

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/test/relay"
)

// soakParts are ours, in the order in which they start. The second of two is like the first.
var soakParts = []string{
	"reflector", "reflector-2", "indexer", "indexer-2", "queue", "queue-2", "nodes", "controllers", "controllers-2",
}

// soak is a deployment in which everything is a process of its own, and a relay stands between any
// two of them.
type soak struct {
	*upTarget
	t      *testing.T
	rng    *rand.Rand // of the faults alone, so that a seed repeats them
	redis  *embeddedtest.Node
	relays map[string]*relay.Relay // by "client to server"
	links  []string                // the keys of relays, in the order in which they were made
	tails  map[string][]byte       // the last of what processes said that have ended
	counts map[string]map[string]int
}

// TestNothingIsLostUnderFaults runs everything for DELTAPLANE_TEST_SOAK while parts are killed,
// stopped and cut off at random, Jobs come and go, and every Job is judged. When the faults are
// over all must be as if there had been none. DELTAPLANE_TEST_SOAK_SEED repeats their order.
func TestNothingIsLostUnderFaults(t *testing.T) {
	text := os.Getenv("DELTAPLANE_TEST_SOAK")
	if text == "" {
		t.Skip("DELTAPLANE_TEST_SOAK is not set: `make soak-system` sets how long")
	}
	lasts, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("DELTAPLANE_TEST_SOAK: %v", err)
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("DELTAPLANE_TEST_SOAK_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("DELTAPLANE_TEST_SOAK_SEED: %v", err)
		}
	}
	t.Logf("%s of faults, DELTAPLANE_TEST_SOAK_SEED=%d", lasts, seed)

	s := newSoak(t, seed)
	x := s.sees("indexer", "queue")
	awaitServed(t, x)
	l := s.load(x)
	l.settle(min(max(lasts/10, 20*time.Second), 2*time.Minute))
	before := s.figures()
	s.torment(lasts, l)
	l.finish()
	t.Logf("faults are over: %s", l)
	t.Log(s.summary())

	jobs := burst(t, x, "last", 20)
	checkAllComplete(t, x, jobs, 5*time.Minute)
	for _, i := range []string{"indexer", "indexer-2"} {
		checkConverged(t, s.sees(i, "queue"))
	}
	remove(t, x, jobs)
	l.nothingLeft()
	for _, q := range []string{"queue", "queue-2"} {
		testQueueDrained(t, s.sees("indexer", q))
	}
	checkConverged(t, s.sees("indexer-2", "queue-2"))
	s.back(before)
	s.end()
}

func newSoak(t *testing.T, seed uint64) *soak {
	t.Helper()
	s := &soak{
		upTarget: newUp(t, ""), t: t, rng: rand.New(rand.NewPCG(seed, 0)), //nolint:gosec // faults are no secret
		redis: embeddedtest.DurableRedis(t), relays: map[string]*relay.Relay{}, tails: map[string][]byte{}, counts: map[string]map[string]int{},
	}
	names := []string{"api", "nats"}
	for _, p := range soakParts {
		names = append(names, p, p+"-admin")
	}
	for i, port := range embeddedtest.Ports(t, len(names)) {
		s.ports[names[i]] = port
	}
	s.ports["redis"] = s.redis.Addr()
	s.kubeconfig = filepath.Join(s.dir, "kubeconfig")
	config := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "dev",
		"clusters": [{"name": "dev", "cluster": {"server": "http://%s"}}],
		"contexts": [{"name": "dev", "context": {"cluster": "dev", "user": "dev"}}],
		"users": [{"name": "dev", "user": {}}]}`, s.ports["api"])
	if err := os.WriteFile(s.kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for name, said := range s.tails {
			if t.Failed() {
				t.Logf("%s that ended last said:\n%s", name, said)
			}
		}
	})
	for _, p := range append([]string{"api", "nats"}, soakParts...) {
		s.run(p)
	}
	return s
}

// sees is the deployment by one replica of the index and one queue server.
func (s *soak) sees(index, queue string) *Target {
	return &Target{
		Name: "soak", Index: s.ports[index], Queue: s.ports[queue], Reflector: s.ports["reflector"],
		API: &API{Base: "http://" + s.ports["api"], Client: http.DefaultClient},
	}
}

// via is where a part finds another: a relay between the two.
func (s *soak) via(part, other string) string {
	name := part + " to " + other
	if s.relays[name] == nil {
		s.relays[name] = relay.New(s.t, s.ports[other])
		s.links = append(s.links, name)
	}
	return s.relays[name].Addr()
}

// run starts a part.
func (s *soak) run(part string) {
	s.t.Helper()
	service, replica, _ := strings.Cut(part, "-")
	beside := func(other string) string { // the replica that this one uses
		if replica != "" {
			other += "-" + replica
		}
		return s.via(part, other)
	}
	args := []string{"serve", service, "--admin-listen", s.ports[part+"-admin"]}
	switch service {
	case "api":
		args = []string{"serve", "devcluster", "--listen", s.ports["api"], "--data-dir", filepath.Join(s.dir, "cluster")}
	case "nats":
		args = []string{
			"up", "--no-demo", "--skip", "reflector,indexer,queue,controllers,gateway,console", "--kubeconfig", s.kubeconfig,
			"--data-dir", filepath.Join(s.dir, "nats"), "--nats-listen", s.ports["nats"],
		}
	case "reflector":
		args = append(args, "--listen", s.ports[part], "--nats-url", "nats://"+s.via(part, "nats"), "--api-url", "http://"+s.via(part, "api"))
	case "indexer":
		args = append(args, "--listen", s.ports[part], "--nats-url", "nats://"+s.via(part, "nats"))
		if replica == "" { // the other one reads the logs from their start
			args = append(args, "--index-data-dir", filepath.Join(s.dir, "index"))
		}
	case "queue":
		args = append(args, "--listen", s.ports[part], "--redis-url", "redis://"+s.via(part, "redis"))
	case "nodes":
		args[1] = "node"
		args = append(args, "--simulated-nodes", "3", "--root-dir", filepath.Join(s.dir, "nodes"),
			"--index-url", s.via(part, "indexer"), "--api-url", "http://"+s.via(part, "api"))
	case "controllers":
		args = append(args, "--controllers", "job,nodelifecycle,podgc,tainteviction", "--lease", "5s", "--identity", part,
			"--nats-url", "nats://"+s.via(part, "nats"), "--api-url", "http://"+s.via(part, "api"),
			"--index-url", beside("indexer"), "--queue-url", beside("queue"))
	}
	s.start(s.t, part, args...)
}

// leave ends a part by a signal, and looks at what it has said.
func (s *soak) leave(part string, signal syscall.Signal) {
	s.t.Helper()
	p := s.processes[part]
	s.stop(s.t, part, signal)
	s.judge(part, p)
}

// judge reads the log of a process that has ended.
func (s *soak) judge(part string, p *process) {
	s.t.Helper()
	said := p.out.Bytes()
	s.tails[part] = tail(said, 8_000)
	for line := range strings.Lines(string(said)) {
		for _, bad := range []string{"panic", "data race", "fatal error"} {
			if strings.Contains(strings.ToLower(line), bad) {
				s.t.Errorf("%s said: %s", part, line)
			}
		}
	}
}

// end stops everything in the order of use. A stop must be clean.
func (s *soak) end() {
	s.t.Helper()
	for _, part := range []string{"controllers-2", "controllers", "nodes", "queue-2", "queue", "indexer-2", "indexer", "reflector-2", "reflector", "nats", "api"} {
		s.leave(part, syscall.SIGTERM)
	}
}
