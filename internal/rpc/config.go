package rpc

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/deltaplane/deltaplane/internal/certs"
)

// ServerConfig says where and how a gRPC server listens. Its zero value is a
// server on a free loopback port, without TLS, that lets everybody in.
type ServerConfig struct {
	// Listen is host:port. Default 127.0.0.1:0.
	Listen string
	// TLS is used when its CertFile is set.
	TLS TLSConfig
	// Auth chooses who may call. Default: tokens when TokenFile is set, else allow-all.
	Auth AuthConfig
	// Insecure permits listening beyond loopback without TLS and authentication.
	Insecure bool

	// MaxMessageBytes bounds one received message; a larger one is answered
	// RESOURCE_EXHAUSTED. Default 16 MiB. Methods that need less have lower bounds of
	// their own: see [Options.MessageBytes]; a health check has 4 KiB. Headers have at
	// most 64 KiB, and compressed messages are refused.
	MaxMessageBytes int
	// MaxConnections and MaxClientConnections bound the connections open at once, of
	// all and of the host they come from (of IPv6 the /64 network); those whose
	// handshake is under way count. Further ones are closed at once. As many health
	// calls may be under way. Defaults 8192 and 1024; −1 lifts one. Where callers have
	// names, a host from which no call has been authorized for 10 minutes opens 256 at
	// once and 10 a second. A connection on which none was is closed after 200 refused
	// calls at once, or 20 a second, and its calls beyond 32 at once and 200 a second
	// wait for up to 10 ms each.
	MaxConnections, MaxClientConnections int
	// HandshakeTimeout is how long a new connection may take for TLS and the first
	// frames of HTTP/2. Default 10 s.
	HandshakeTimeout time.Duration
	// MaxConcurrentStreams bounds calls in flight on one connection: a client
	// holds further ones back until others have ended. Default 8192.
	MaxConcurrentStreams uint32
	// MaxClientCalls bounds the unary calls that one client may have under way
	// over all its connections; more are answered RESOURCE_EXHAUSTED
	// TOO_MANY_REQUESTS with RetryInfo. A client is the name of its token, else
	// the subject of its certificate, else the host it calls from. Default 4096;
	// −1 lifts the bound.
	MaxClientCalls int
	// MaxClientStreams and MaxStreams bound the streaming calls open at once of
	// one client and of all; more are answered RESOURCE_EXHAUSTED
	// TOO_MANY_STREAMS with RetryInfo. Defaults 8192 and 32768; −1 lifts one.
	MaxClientStreams, MaxStreams int
	// StreamWorkers is how many goroutines are kept to run handlers on: a new one
	// pays a sixth of an empty call for growing its stack. As many calls as arrive
	// at once need one each. Default 32 times GOMAXPROCS, at least 128, which take
	// about a megabyte; −1 starts a goroutine for each call.
	StreamWorkers int
	// MaxConnectionAge makes clients reconnect, so that new replicas get their
	// share. Default 30 min; −1 keeps connections.
	MaxConnectionAge time.Duration
	// MaxConnectionGrace is how long calls may go on after that. Default 1 min.
	MaxConnectionGrace time.Duration
	// KeepaliveMinTime is the least interval at which clients may ping. Default 10 s.
	KeepaliveMinTime time.Duration
	// DrainGrace is how long, after its context ended, the server says that it is
	// NOT_SERVING and goes on taking calls, so that a client that balances over replicas
	// has turned to others before this one refuses. Default 0: none.
	DrainGrace time.Duration
	// StopTimeout is how long calls in hand may then take to finish before they
	// are cut off. Default 5 s.
	StopTimeout time.Duration
}

// TLSConfig names PEM files. On a server CAFile makes a client certificate compulsory, unless
// callers are identified by tokens too.
type TLSConfig = certs.Config

// AuthConfig chooses the authorizer of a server.
type AuthConfig struct {
	// Mode is "allow-all", "tokens" or "identities"; empty chooses by TokenFile. With
	// identities a caller is who its bearer token or its client certificate says, and
	// one without either is refused; [Options.Authorizer] tells who that is.
	Mode string
	// TokenFile holds the bearer tokens; see [NewTokens] for its format. A token that
	// is taken out is refused within a second, on streams that are open too. Without a
	// token in it, or without the file, all are refused: replace it by renaming
	// another one.
	TokenFile string
	// TokenFileGrace is how long the tokens of the last good file are accepted when
	// the file cannot be read or understood. Default 10 min.
	TokenFileGrace time.Duration
}

const defaultTokenFileGrace = 10 * time.Minute

// The values of [AuthConfig.Mode].
const (
	AuthAllowAll   = "allow-all"
	AuthTokens     = "tokens"
	AuthIdentities = "identities"
)

// WithDefaults returns c with every unset field filled in.
func (c ServerConfig) WithDefaults() ServerConfig {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:0")
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, 16<<20)
	c.MaxConnections = cmp.Or(c.MaxConnections, 8192)
	c.MaxClientConnections = cmp.Or(c.MaxClientConnections, 1024)
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, 10*time.Second)
	c.MaxConcurrentStreams = cmp.Or(c.MaxConcurrentStreams, 8192)
	c.MaxClientCalls = cmp.Or(c.MaxClientCalls, 4096)
	c.MaxClientStreams = cmp.Or(c.MaxClientStreams, 8192)
	c.MaxStreams = cmp.Or(c.MaxStreams, 32768)
	c.StreamWorkers = cmp.Or(c.StreamWorkers, max(128, 32*runtime.GOMAXPROCS(0)))
	c.MaxConnectionAge = cmp.Or(c.MaxConnectionAge, 30*time.Minute)
	c.MaxConnectionGrace = cmp.Or(c.MaxConnectionGrace, time.Minute)
	c.KeepaliveMinTime = cmp.Or(c.KeepaliveMinTime, 10*time.Second)
	c.StopTimeout = cmp.Or(c.StopTimeout, 5*time.Second)
	if c.Auth.Mode == "" {
		c.Auth.Mode = AuthAllowAll
		if c.Auth.TokenFile != "" {
			c.Auth.Mode = AuthTokens
		}
	}
	return c
}

// Validate reports every fault of c together. It includes the rule of the open
// door: an address beyond loopback needs TLS and authentication (tokens or
// client certificates), unless Insecure is set.
func (c ServerConfig) Validate() error {
	c = c.WithDefaults()
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("rpc: "+format, args...)) }
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		fault("listen address %q: %w", c.Listen, err)
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		fault("tls needs both a certificate file and a key file")
	}
	if c.TLS.CAFile != "" && c.TLS.CertFile == "" {
		fault("tls client CA %q is given without a certificate of our own", c.TLS.CAFile)
	}
	switch c.Auth.Mode {
	case AuthAllowAll:
		if c.Auth.TokenFile != "" {
			fault("auth mode %q does not use the token file %q", c.Auth.Mode, c.Auth.TokenFile)
		}
	case AuthTokens:
		if c.Auth.TokenFile == "" {
			fault("auth mode %q needs a token file", c.Auth.Mode)
		}
	case AuthIdentities:
	default:
		fault("auth mode %q is not one of %q, %q, %q", c.Auth.Mode, AuthAllowAll, AuthTokens, AuthIdentities)
	}
	if c.MaxMessageBytes < 0 {
		fault("max message bytes %d is negative", c.MaxMessageBytes)
	}
	for _, n := range []struct {
		name  string
		value int
	}{
		{"stream workers", c.StreamWorkers},
		{"max connections", c.MaxConnections},
		{"max client connections", c.MaxClientConnections},
		{"max client calls", c.MaxClientCalls},
		{"max client streams", c.MaxClientStreams},
		{"max streams", c.MaxStreams},
	} {
		if n.value < -1 {
			fault("%s is %d, want a positive number, or -1 for none", n.name, n.value)
		}
	}
	if c.MaxStreams > 0 && c.MaxClientStreams > c.MaxStreams {
		fault("max client streams %d exceeds max streams %d", c.MaxClientStreams, c.MaxStreams)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"handshake timeout", c.HandshakeTimeout},
		{"token file grace", c.Auth.TokenFileGrace},
		{"max connection grace", c.MaxConnectionGrace},
		{"keepalive min time", c.KeepaliveMinTime},
		{"drain grace", c.DrainGrace},
		{"stop timeout", c.StopTimeout},
	} {
		if d.value < 0 {
			fault("%s is %v, want a positive duration", d.name, d.value)
		}
	}
	authenticated := c.Auth.Mode != AuthAllowAll || c.TLS.CAFile != ""
	if err := CheckOpen(c.Listen, c.TLS.CertFile != "" && authenticated, c.Insecure); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// ErrOpenListen is what [CheckOpen] and [ServerConfig.Validate] refuse with.
var ErrOpenListen = errors.New("rpc: listening beyond loopback needs TLS and authentication, or --insecure")

// CheckOpen applies the rule of the open door to an address: it returns an
// error matching [ErrOpenListen] when addr is not loopback and neither secured
// nor insecure holds.
func CheckOpen(addr string, secured, insecure bool) error {
	if secured || insecure || Loopback(addr) {
		return nil
	}
	return fmt.Errorf("listen address %q: %w", addr, ErrOpenListen)
}

// Loopback reports whether host:port can be reached from this machine only. An
// empty host means every interface, so it is not loopback.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
