package consistency

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/test/child"
)

// crew is a source, two reflectors, a log of one server or three, and two indexers.
type crew struct {
	t        *testing.T
	src      *source
	indexes  [2]*process
	mirrors  [2]*process
	replicas [2]indexv1.IndexServiceClient
	admin    [2]reflectorv1.ReflectorServiceClient
	servers  *embeddedtest.NATSSet // of the log; nil for one
}

type process struct {
	*child.Process
	role role
}

func newCrew(t *testing.T, servers int) *crew {
	t.Helper()
	c := &crew{t: t, src: newSource(t)}
	var url string
	if servers == 1 {
		url = embeddedtest.NATS(t).URL()
	} else {
		c.servers = embeddedtest.NATSCluster(t, servers)
		url = c.servers.URL
	}
	ports := embeddedtest.Ports(t, 4)
	for i := range 2 {
		c.mirrors[i] = &process{role: role{Name: fmt.Sprintf("reflector-%d", i), Listen: ports[i], NATS: url, Servers: servers, Source: c.src.URL}}
		c.indexes[i] = &process{role: role{Name: fmt.Sprintf("indexer-%d", i), Listen: ports[2+i], NATS: url, Servers: servers, Dir: t.TempDir()}}
		for _, p := range []*process{c.mirrors[i], c.indexes[i]} {
			p.Process = child.Start(t, p.role)
		}
		c.admin[i] = reflectorv1.NewReflectorServiceClient(dial(t, ports[i]))
		c.replicas[i] = indexv1.NewIndexServiceClient(dial(t, ports[2+i]))
	}
	for i, r := range c.replicas {
		c.until(fmt.Sprintf("indexer %d has the collection", i), func(ctx context.Context) error {
			_, err := r.Count(ctx, &indexv1.CountRequest{Collection: pods})
			return err
		})
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		c.src.run(stop)
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
	})
	return c
}

func dial(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.Dial(addr, rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// until tries until something succeeds.
func (c *crew) until(what string, try func(context.Context) error) {
	c.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
		err := try(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// restart kills a process and starts it again.
func (c *crew) restart(p *process) {
	p.Kill()
	p.Process = child.Start(c.t, p.role)
}

// pause stops processes for a time.
func pause(d time.Duration, list ...*process) {
	for _, p := range list {
		p.Signal(syscall.SIGSTOP)
	}
	time.Sleep(d)
	for _, p := range list {
		p.Signal(syscall.SIGCONT)
	}
}

// trouble makes one fault, and says which.
func (c *crew) trouble() string {
	one := rand.IntN(2)
	short, long := time.Duration(50+rand.IntN(700))*time.Millisecond, leaseTTL+time.Duration(rand.IntN(700))*time.Millisecond
	if c.servers != nil && rand.IntN(10) == 0 {
		i := rand.IntN(3)
		c.servers.Stop(i)
		time.Sleep(short)
		c.servers.Start(i)
		return "log's server stopped"
	}
	switch rand.IntN(10) {
	case 0, 1, 2:
		pause(short, c.indexes[one])
		return "indexer paused"
	case 3, 4:
		pause(short, c.indexes[:]...)
		return "both indexers paused"
	case 5:
		c.restart(c.indexes[one])
		return "indexer killed"
	case 6:
		c.restart(c.mirrors[one])
		return "reflector killed"
	case 7:
		pause(long, c.mirrors[one])
		return "reflector paused"
	case 8:
		pause(short, c.mirrors[:]...)
		return "both reflectors paused"
	default:
		ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Second)
		defer cancel()
		_, err := c.admin[one].Relist(ctx, &reflectorv1.RelistRequest{Collection: pods})
		if err != nil {
			return "relist refused"
		}
		return "relist"
	}
}

// number is an environment variable, or what a short run takes.
func number(t *testing.T, variable string, short int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return short
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
