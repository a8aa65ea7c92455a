package embeddedtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// Ports are taken below the range that the system hands to outgoing connections: one of those could otherwise take the
// port between this look and the program's listening on it.
const firstPort, lastPort = 10_000, 30_000

// Ports finds n different free loopback addresses, host:port, for programs that must be told theirs before they listen.
func Ports(t testing.TB, n int) []string {
	t.Helper()
	var listen net.ListenConfig
	var found []string
	var held []net.Listener
	for tries := 0; len(found) < n; tries++ {
		if tries > 1000 {
			t.Fatal("no free ports")
		}
		address := fmt.Sprintf("127.0.0.1:%d", firstPort+rand.N(lastPort-firstPort))
		l, err := listen.Listen(t.Context(), "tcp", address)
		if err != nil {
			continue
		}
		held = append(held, l) // so that no port is found twice
		found = append(found, address)
	}
	for _, l := range held {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return found
}
