package embeddedtest

import (
	"cmp"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// PlainNATS starts a NATS server without JetStream at a loopback host:port, a free one when listen
// is empty. It returns its URL and what stops it before the test ends.
func PlainNATS(t testing.TB, listen string) (url string, stop func()) {
	t.Helper()
	host, text, err := net.SplitHostPort(cmp.Or(listen, "127.0.0.1:"+strconv.Itoa(server.RANDOM_PORT)))
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	srv, err := server.NewServer(&server.Options{Host: host, Port: port, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	stop = sync.OnceFunc(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	t.Cleanup(stop)
	if !srv.ReadyForConnections(20 * time.Second) {
		t.Fatal("nats did not become ready")
	}
	return "nats://" + srv.Addr().String(), stop
}
