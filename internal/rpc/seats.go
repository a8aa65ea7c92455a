package rpc

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// seats counts connections, in all and by the host they come from, from the moment they are
// accepted: before that host has named itself. Connections are not wrapped for it, because grpc-go
// knows a bare TCP connection. A connection whose handshake fails thus gives its seat
// back only when the time for handshakes is over.
type seats struct {
	all, each int // limits
	timeout   time.Duration
	refused   prometheus.Counter
	log       *slog.Logger

	mu      sync.Mutex // guards the rest
	count   int
	hosts   map[netip.Prefix]int
	arrived map[netip.AddrPort]*seat // whose handshake is under way, by remote address
	quiet   time.Time                // until when refusals are not logged

	strangers strangers
}

// seat is one connection's. It is guarded by mu of seats.
type seat struct {
	addr  netip.AddrPort
	host  netip.Prefix
	timer *time.Timer
	free  bool

	conn net.Conn // set before anybody else has the seat
}

func newSeats(cfg ServerConfig, log *slog.Logger, refused prometheus.Counter) *seats {
	return &seats{
		all: cfg.MaxConnections, each: cfg.MaxClientConnections, timeout: cfg.HandshakeTimeout, refused: refused, log: log,
		hosts: map[netip.Prefix]int{}, arrived: map[netip.AddrPort]*seat{}, strangers: newStrangers(),
	}
}

// peerHost is the host of a TCP address: all of a /64 network of IPv6 may be one.
func peerHost(a netip.AddrPort) netip.Prefix {
	ip := a.Addr().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	host, _ := ip.Prefix(bits)
	return host
}

func tcpAddr(a net.Addr) (netip.AddrPort, bool) {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, false
	}
	return tcp.AddrPort(), true
}

// arrive gives a new connection a seat, or says that there is none.
func (s *seats) arrive(conn net.Conn, now time.Time) bool {
	addr, ok := tcpAddr(conn.RemoteAddr())
	if !ok {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if was := s.arrived[addr]; was != nil { // its connection has ended, or the address were not free
		s.give(was)
	}
	host := peerHost(addr)
	if s.all > 0 && s.count >= s.all || s.each > 0 && (s.hosts[host] >= s.each || !s.strangers.may(host, now)) {
		s.refused.Inc()
		if now.After(s.quiet) {
			s.quiet = now.Add(10 * time.Second)
			s.log.Warn("connections refused: too many are open, or are opened by a host that nobody is known from", slog.String("addr", host.String()),
				slog.Int("count", s.hosts[host]), slog.Int("open", s.count))
		}
		return false
	}
	seat := &seat{addr: addr, host: host, conn: conn}
	seat.timer = time.AfterFunc(s.timeout+time.Second, func() { s.expire(seat) })
	s.count++
	s.hosts[host]++
	s.arrived[addr] = seat
	return true
}

// keep returns the seat of a connection after its handshake; release ends it.
func (s *seats) keep(remote net.Addr) *seat {
	addr, ok := tcpAddr(remote)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seat := s.arrived[addr]
	if seat == nil {
		return nil
	}
	seat.timer.Stop()
	delete(s.arrived, addr)
	return seat
}

// expire frees a seat whose connection has not got through its handshake.
func (s *seats) expire(seat *seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.arrived[seat.addr] == seat {
		s.give(seat)
	}
}

func (s *seats) release(seat *seat) {
	if seat == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.give(seat)
}

// give frees a seat, once. s.mu is locked.
func (s *seats) give(seat *seat) {
	if seat.free {
		return
	}
	seat.free = true
	seat.timer.Stop()
	if s.arrived[seat.addr] == seat {
		delete(s.arrived, seat.addr)
	}
	s.count--
	if s.hosts[seat.host]--; s.hosts[seat.host] == 0 {
		delete(s.hosts, seat.host)
	}
}

func (s *seats) taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// listen accepts from lis the connections that find a seat, and closes the others.
func (s *seats) listen(lis net.Listener) net.Listener { return &seatedListener{lis, s} }

type seatedListener struct {
	net.Listener
	seats *seats
}

// Accept implements net.Listener.
func (l *seatedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || l.seats.arrive(conn, time.Now()) {
			return conn, err
		}
		_ = conn.Close()
	}
}
