package rpc

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/core/access"
)

// gate counts the calls under way, of the server and of each client, and refuses those beyond the
// limits. A client is who the authorizer says it is, else the holder of the connection's
// certificate, else the host the connection comes from. What a call needs to know is found once per
// connection and kept with it, so that admission costs a few atomic steps.
type gate struct {
	unary, streams, serverStreams int64 // limits
	clientPublic, serverPublic    int64 // limits of calls without authentication

	refused *prometheus.CounterVec
	open    atomic.Int64 // streams of all clients
	unnamed atomic.Int64 // calls without authentication
	seats   *seats

	mu      sync.Mutex // guards clients
	clients map[string]*client
}

// client is one caller, over all of its connections. A call may go on for a while after its
// connection has ended, and counts until it is over: a client is forgotten when it has neither.
type client struct {
	name                   string
	fromAuthorizer         bool
	conns                  int         // guarded by the gate
	apart                  atomic.Bool // conns is zero; written under the gate's mu
	unary, streams, public atomic.Int64
}

func (c *client) key() string { return strconv.FormatBool(c.fromAuthorizer) + c.name }

// connection is kept with each connection. Clients behind one proxy share it.
type connection struct {
	born time.Time
	host string
	seat *seat
	last atomic.Pointer[client]
	// stranger is whose it is until a call on it was authorized; nil then.
	stranger atomic.Pointer[stranger]

	mu    sync.Mutex // guards the rest
	held  []*client
	ended bool
}

type connectionKey struct{}

const (
	refusedRequests = "TOO_MANY_REQUESTS"
	refusedStreams  = "TOO_MANY_STREAMS"
	refusedPublic   = "TOO_MANY_HEALTH_CALLS"
	refusedHeaders  = "HEADERS_TOO_LARGE"
)

func newGate(cfg ServerConfig, log *slog.Logger, reg prometheus.Registerer) (*gate, error) {
	g := &gate{
		unary: int64(cfg.MaxClientCalls), streams: int64(cfg.MaxClientStreams), serverStreams: int64(cfg.MaxStreams),
		// One watch of health for each connection is what clients need.
		clientPublic: int64(cfg.MaxClientConnections), serverPublic: int64(cfg.MaxConnections),
		clients: map[string]*client{},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_rpc_refused_total",
			Help: "Calls refused before their handler ran, by reason: too_many_requests, too_many_streams, " +
				"too_many_health_calls, too_many_connections, headers_too_large, compressed, unauthenticated, permission_denied, connection_closed.",
		}, []string{"reason"}),
	}
	g.seats = newSeats(cfg, log, g.refused.WithLabelValues("too_many_connections"))
	for _, c := range []prometheus.Collector{
		g.refused,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "deltaplane_rpc_connections", Help: "Connections that are open, those whose handshake is under way among them.",
		}, func() float64 { return float64(g.seats.taken()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "deltaplane_rpc_streams", Help: "Streaming calls under way.",
		}, func() float64 { return float64(g.open.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "deltaplane_rpc_clients", Help: "Clients that are connected or have calls under way, as the limits tell them apart.",
		}, func() float64 { g.mu.Lock(); defer g.mu.Unlock(); return float64(len(g.clients)) }),
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// call admits a unary call, which ends with done. The client is nil outside a connection.
func (g *gate) call(ctx context.Context, name string) (*client, error) {
	c := g.client(ctx, name)
	if c == nil {
		return nil, nil
	}
	c, n := g.enter(c, unaryCalls)
	if g.unary > 0 && n > g.unary {
		g.leave(c, unaryCalls)
		return nil, g.refuse(refusedRequests, "too_many_requests", "too many calls of this client are under way", g.unary)
	}
	return c, nil
}

// done ends what call admitted.
func (g *gate) done(c *client) { g.leave(c, unaryCalls) }

func unaryCalls(c *client) *atomic.Int64  { return &c.unary }
func streamCalls(c *client) *atomic.Int64 { return &c.streams }

// enter counts a call of a client, or of one that has taken its place: one whose connections have
// ended may have been forgotten since it was found.
func (g *gate) enter(c *client, calls func(*client) *atomic.Int64) (*client, int64) {
	n := calls(c).Add(1)
	if !c.apart.Load() {
		return c, n
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clients[c.key()]
	if now == nil {
		now = c
		g.clients[c.key()] = c
	}
	if now != c {
		calls(c).Add(-1)
		n = calls(now).Add(1)
	}
	return now, n
}

func (g *gate) leave(c *client, calls func(*client) *atomic.Int64) {
	if calls(c).Add(-1); c.apart.Load() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.forget(c)
	}
}

// forget lets go of a client that has neither a connection nor a call. g.mu is held.
func (g *gate) forget(c *client) {
	if c.conns == 0 && c.unary.Load() == 0 && c.streams.Load() == 0 && c.public.Load() == 0 && g.clients[c.key()] == c {
		delete(g.clients, c.key())
	}
}

// stream admits a streaming call; leave ends it. The client is nil outside a connection.
func (g *gate) stream(ctx context.Context, name string) (c *client, leave func(), err error) {
	if n := g.open.Add(1); g.serverStreams > 0 && n > g.serverStreams {
		g.open.Add(-1)
		return nil, nil, g.refuse(refusedStreams, "too_many_streams", "too many streams are open", g.serverStreams)
	}
	if c = g.client(ctx, name); c == nil {
		return nil, func() { g.open.Add(-1) }, nil
	}
	c, n := g.enter(c, streamCalls)
	if g.streams > 0 && n > g.streams {
		g.leave(c, streamCalls)
		g.open.Add(-1)
		return nil, nil, g.refuse(refusedStreams, "too_many_streams", "too many streams of this client are open", g.streams)
	}
	return c, func() { g.leave(c, streamCalls); g.open.Add(-1) }, nil
}

func publicCalls(c *client) *atomic.Int64 { return &c.public }

// public admits a call without authentication, which is its connection's; leave is to be called
// when it ends.
func (g *gate) public(ctx context.Context) (leave func(), err error) {
	if n := g.unnamed.Add(1); g.serverPublic > 0 && n > g.serverPublic {
		g.unnamed.Add(-1)
		return nil, g.refuse(refusedPublic, "too_many_health_calls", "too many health calls are under way", g.serverPublic)
	}
	c := g.client(ctx, "")
	if c == nil {
		return func() { g.unnamed.Add(-1) }, nil
	}
	c, n := g.enter(c, publicCalls)
	if g.clientPublic > 0 && n > g.clientPublic {
		g.leave(c, publicCalls)
		g.unnamed.Add(-1)
		return nil, g.refuse(refusedPublic, "too_many_health_calls", "too many health calls of this client are under way", g.clientPublic)
	}
	return func() { g.leave(c, publicCalls); g.unnamed.Add(-1) }, nil
}

func (g *gate) refuse(reason, label, text string, limit int64) error {
	g.refused.WithLabelValues(label).Inc()
	st := withInfo(status.New(codes.ResourceExhausted, text), reason, map[string]string{"limit": strconv.FormatInt(limit, 10)})
	// Spread, so that those refused together do not come back together.
	return withDetails(st, retryInfo(nil, 100*time.Millisecond+rand.N(200*time.Millisecond))).Err()
}

// calling is what is known of the caller of a call, with its context.
type calling struct {
	client *client // nil outside a connection
	id     *access.Identity

	mu     sync.Mutex
	checks []func(context.Context) error // of a stream, what must hold still; guarded by mu
}

type callingKey struct{}

func callOf(ctx context.Context) *calling {
	c, _ := ctx.Value(callingKey{}).(*calling)
	return c
}

// Caller is who a call with the context was authenticated as; nil where the
// authorizer names nobody.
func Caller(ctx context.Context) *access.Identity {
	if c := callOf(ctx); c != nil {
		return c.id
	}
	return nil
}

// Recheck ends the stream of the context once check returns an error, which its
// client gets. Check is called whenever what is authorized has changed, beside the
// handler. It does nothing for calls that are no streams.
func Recheck(ctx context.Context, check func(context.Context) error) {
	c := callOf(ctx)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checks = append(c.checks, check)
}

// holds asks all that must hold still.
func (c *calling) holds(ctx context.Context) error {
	c.mu.Lock()
	checks := slices.Clone(c.checks)
	c.mu.Unlock()
	for _, check := range checks {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ofClient is a stream that knows whose it is: its connection may be that of several clients.
type ofClient struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *ofClient) Context() context.Context { return s.ctx }

// Client names whose call a context is of, in the way that clients are counted;
// empty outside a connection.
func Client(ctx context.Context) string {
	if c := callOf(ctx); c != nil && c.client != nil {
		return c.client.name
	}
	conn, ok := ctx.Value(connectionKey{}).(*connection)
	if !ok {
		return ""
	}
	if c := conn.last.Load(); c != nil {
		return c.name
	}
	return conn.owner(ctx)
}

// Identity names the caller that a call was authenticated as: by its token, or by
// the certificate of its connection. It is empty when callers are distinguished by
// where they come from only, and do not own anything.
func Identity(ctx context.Context) string {
	if id := Caller(ctx); id != nil {
		return id.Name()
	}
	if conn, ok := ctx.Value(connectionKey{}).(*connection); ok {
		if name := conn.owner(ctx); strings.HasPrefix(name, certificatePrefix) {
			return name
		}
	}
	return ""
}

const certificatePrefix = "certificate "

// client finds whose call it is; nil outside a connection.
func (g *gate) client(ctx context.Context, name string) *client {
	conn, ok := ctx.Value(connectionKey{}).(*connection)
	if !ok {
		return nil
	}
	if c := conn.last.Load(); c != nil && c.fromAuthorizer == (name != "") && (name == "" || c.name == name) {
		return c
	}
	return g.identify(ctx, conn, name)
}

func (g *gate) identify(ctx context.Context, conn *connection, name string) *client {
	authorized := name != ""
	if !authorized {
		name = conn.owner(ctx)
	}
	conn.mu.Lock()
	defer conn.mu.Unlock()
	for _, c := range conn.held {
		if c.name == name && c.fromAuthorizer == authorized {
			conn.last.Store(c)
			return c
		}
	}
	c := &client{name: name, fromAuthorizer: authorized}
	g.mu.Lock()
	defer g.mu.Unlock()
	if known := g.clients[c.key()]; known != nil {
		c = known
	}
	if conn.ended { // its calls are being cancelled, and count meanwhile
		c.apart.Store(c.conns == 0)
		return c
	}
	g.clients[c.key()] = c
	c.conns++
	c.apart.Store(false)
	conn.held = append(conn.held, c)
	conn.last.Store(c)
	return c
}

// owner names who a connection belongs to, without an authorizer's help.
func (c *connection) owner(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
			return certificatePrefix + info.State.PeerCertificates[0].Subject.String()
		}
	}
	return "host " + c.host
}

// TagConn implements stats.Handler.
func (g *gate) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	c := &connection{born: time.Now()}
	if !g.seats.strangers.everybody {
		c.stranger.Store(newStranger())
	}
	if info != nil && info.RemoteAddr != nil {
		c.host = info.RemoteAddr.String()
		// A client may have any number of connections, each from its own port.
		if host, _, err := net.SplitHostPort(c.host); err == nil {
			c.host = host
		}
		c.seat = g.seats.keep(info.RemoteAddr)
	}
	return context.WithValue(ctx, connectionKey{}, c)
}

// HandleConn implements stats.Handler.
func (g *gate) HandleConn(ctx context.Context, s stats.ConnStats) {
	conn, ok := ctx.Value(connectionKey{}).(*connection)
	if _, end := s.(*stats.ConnEnd); !ok || !end {
		return
	}
	g.seats.release(conn.seat)
	conn.mu.Lock()
	defer conn.mu.Unlock()
	conn.ended = true
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conn.held {
		if c.conns--; c.conns == 0 {
			c.apart.Store(true)
			g.forget(c)
		}
	}
	conn.held = nil
}
