package embeddedtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// Ports are taken below the range that the system hands to outgoing connections: one of those could
// otherwise take the port between this look and the program's listening on it.
const firstPort, lastPort = 10_000, 30_000

// Ports finds n free loopback addresses, host:port, for programs that need theirs at the start. No
// other call returns one of them before the test has ended, in this process or another: the UDP
// port of the same number is held that long.
func Ports(t testing.TB, n int) []string {
	t.Helper()
	var found []string
	for tries := 0; len(found) < n; tries++ {
		if tries > 1000 {
			t.Fatal("no free ports")
		}
		address := fmt.Sprintf("127.0.0.1:%d", firstPort+rand.N(lastPort-firstPort))
		if reserve(t, address) {
			found = append(found, address)
		}
	}
	return found
}

// reserve holds an address's UDP port until the test ends; false when TCP or UDP is taken.
func reserve(t testing.TB, address string) bool {
	t.Helper()
	var listen net.ListenConfig
	held, err := listen.ListenPacket(t.Context(), "udp", address)
	if err != nil {
		return false
	}
	l, err := listen.Listen(t.Context(), "tcp", address)
	if err != nil {
		_ = held.Close() // nothing was sent on it
		return false
	}
	t.Cleanup(func() { _ = held.Close() })
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return true
}
