package console

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// What a host may have refused of tokens that no service knows: so much at once, and so much a
// second after that. A cluster is asked about some 20 at once and 5 a second of a whole console.
const (
	strangerRefusals, strangerRefusalRate = 10, 1
	// maxHosts bounds the hosts that are remembered.
	maxHosts = 10_000
)

var errTooManyTokens = errors.New("this host has shown too many tokens that nobody knows")

// strangers counts by host the tokens that no service knows. To the services all of them come from
// the console, so that those of one host would keep out everybody.
type strangers struct {
	mu    sync.Mutex
	hosts rpc.Limiters[netip.Prefix] // guarded by mu
}

func newStrangers() *strangers {
	return &strangers{hosts: rpc.Limiters[netip.Prefix]{Burst: strangerRefusals, Rate: strangerRefusalRate, Most: maxHosts}}
}

// may refuses a host that has shown too many.
func (s *strangers) may(host netip.Prefix) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.hosts.May(host, time.Now()) {
		return errTooManyTokens
	}
	return nil
}

// refused counts one more.
func (s *strangers) refused(host netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts.Count(host, time.Now())
}

// forwarded makes a call with a caller's token. One that nobody knows is counted for the host of
// the caller's address.
func (s *Service) forwarded(w who, address string, call func() error) error {
	if w.token == "" || s.sessions.Known(w.token) {
		return call()
	}
	host := hostOf(address)
	if err := s.unknown.may(host); err != nil {
		return err
	}
	err := call()
	if rpc.Code(err) == codes.Unauthenticated {
		s.unknown.refused(host)
	}
	return err
}

// hostOf is the host of an address: all of a /64 network of IPv6 may be one.
func hostOf(address string) netip.Prefix {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.Prefix{}
	}
	ip := a.Addr().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	host, _ := ip.Prefix(bits) // the bits are not too many
	return host
}
