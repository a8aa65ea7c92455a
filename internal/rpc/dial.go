package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/deltaplane/deltaplane/internal/certs"
)

// DialConfig says how to reach a server. Its zero value is plain text without a
// token, which suits loopback.
type DialConfig struct {
	// UseTLS encrypts; it is implied by any field of TLS.
	UseTLS bool
	// TLS names the files of this side.
	TLS TLSConfig
	// ServerName replaces the target's host, a name or an IP address, which the
	// server's certificate must be for.
	ServerName string
	// TokenFile holds the bearer token to present, read again when it changes.
	TokenFile string
	// AllowPlainToken permits sending the token without TLS to a host that is
	// not loopback.
	AllowPlainToken bool
	// MaxMessageBytes bounds one received message. Default 64 MiB.
	MaxMessageBytes int
	// Tracer makes spans for calls within a span that is recorded. Default: none, but trace
	// context still passes through.
	Tracer trace.TracerProvider
	// Dialer replaces TCP, for listeners in memory.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)
	// Extra are further options, such as a codec.
	Extra []grpc.DialOption
}

// Calls that a server or proxy answered UNAVAILABLE never ran, or may run
// again: requests that change something carry their own request ids or
// tokens. Retries stop when the server pushes back or a tenth fail.
const serviceConfig = `{
  "loadBalancingConfig": [{"deltaplane_round_robin": {}}],%s
  "methodConfig": [{
    "name": [{}],
    "waitForReady": false,
    "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 3, "retryableStatusCodes": ["UNAVAILABLE"]}
  }],
  "retryThrottling": {"maxTokens": 20, "tokenRatio": 0.1}
}`

// askHealth turns to those servers only that say they are SERVING: one that has
// just started, or is about to stop, is left out before it refuses a call.
const askHealth = `
  "healthCheckConfig": {"serviceName": ""},`

// config is the service config for a target. A server that is alone is called
// however it feels: it says what is wrong better than a balancer can.
func config(target string) string {
	u, err := url.Parse(target)
	if err != nil || u.Scheme == "" || u.Opaque != "" || u.Scheme == "passthrough" || strings.HasPrefix(u.Scheme, "unix") {
		return fmt.Sprintf(serviceConfig, "")
	}
	return fmt.Sprintf(serviceConfig, askHealth)
}

// What the other side may send before it hears that this one has read. grpc-go's
// own windows begin with 64 KiB and are found by a ping for every message while
// there is room to grow: on a quiet watch each event cost both sides a ping, its
// answer and two window updates, as much as the event itself, and a quiet
// connection's every call cost a ping and its answer. A single message that is
// longer than a window widens it. A server has many connections, and is sent less
// than it sends.
const (
	streamWindow, connWindow             = 1 << 20, 8 << 20
	serverStreamWindow, serverConnWindow = 256 << 10, 1 << 20
)

// Dial prepares a connection to target, "host:port" or any gRPC target; it
// connects on first use and again whenever the connection is lost. A DNS name
// with several addresses is used round robin; with a scheme, as "dns:///NAME:PORT",
// only those are that say they are SERVING. The caller closes it.
func Dial(target string, cfg DialConfig) (*grpc.ClientConn, error) {
	if target == "" {
		return nil, errors.New("rpc: dial: empty target")
	}
	creds, err := cfg.credentials()
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultServiceConfig(config(target)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(cmp.Or(cfg.MaxMessageBytes, 64<<20))),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	}
	options = append(options, sendTrace(cfg.Tracer)...)
	if cfg.TokenFile != "" {
		token, err := newBearer(cfg, target)
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.WithPerRPCCredentials(token))
	}
	if cfg.Dialer != nil {
		options = append(options, grpc.WithContextDialer(cfg.Dialer))
		if !strings.Contains(target, ":///") {
			target = "passthrough:///" + target
		}
	}
	conn, err := grpc.NewClient(target, append(options, cfg.Extra...)...)
	if err != nil {
		return nil, fmt.Errorf("rpc: dial %q: %w", target, err)
	}
	return conn, nil
}

func (c DialConfig) tls() bool { return c.UseTLS || c.TLS != TLSConfig{} }

func (c DialConfig) credentials() (credentials.TransportCredentials, error) {
	if !c.tls() {
		return insecure.NewCredentials(), nil
	}
	if err := certs.Validate(c.TLS); err != nil {
		return nil, fmt.Errorf("rpc: dial: %w, or neither", err)
	}
	return certs.Credentials(c.TLS, c.ServerName)
}

// bearer presents a token with every call.
type bearer struct {
	token  *certs.Files[string]
	secure bool
}

func newBearer(cfg DialConfig, target string) (*bearer, error) {
	host := target[strings.LastIndex(target, "/")+1:]
	if !cfg.tls() && !cfg.AllowPlainToken && cfg.Dialer == nil && !Loopback(host) {
		return nil, fmt.Errorf("rpc: dial %q: a token would travel in plain text; use TLS", target)
	}
	token, err := certs.OpenFiles(func() (string, error) {
		data, err := os.ReadFile(cfg.TokenFile)
		if err != nil {
			return "", fmt.Errorf("rpc: token: %w", err)
		}
		fields := strings.Fields(string(data))
		if len(fields) == 0 {
			return "", fmt.Errorf("rpc: token file %q is empty", cfg.TokenFile)
		}
		return fields[0], nil
	}, cfg.TokenFile)
	if err != nil {
		return nil, err
	}
	return &bearer{token: token, secure: cfg.tls()}, nil
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b *bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token.Get()}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b *bearer) RequireTransportSecurity() bool { return b.secure }
