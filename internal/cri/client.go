package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// MaxMessage is the largest answer that is read, in bytes: a list of a busy
// node's containers passes gRPC's 4 MB.
const MaxMessage = 64 << 20

// ErrEndpoint says that an endpoint is not one: the message names it and what is expected.
var ErrEndpoint = errors.New("cri: not the endpoint of a runtime")

// Client is a connection to a runtime. Its calls may be made by many goroutines at once.
// A context without a deadline, or with a later one, is given the time limit of the call:
// two minutes for what changes something, [Limits] says the rest.
type Client struct {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
	closer io.Closer
}

// Dial prepares a connection to the runtime behind endpoint,
// "unix:///run/containerd/containerd.sock", and does not wait for it: a runtime may come later than
// its agent. [Client.Check] asks whether it is there. An endpoint of another form is refused with
// [ErrEndpoint].
func Dial(_ context.Context, endpoint string) (*Client, error) {
	return DialObserved(endpoint, nil)
}

// DialObserved is [Dial] with the calls told to observe, as in [Observed].
func DialObserved(endpoint string, observe func(operation string, took time.Duration, err error)) (*Client, error) {
	target, err := socket(endpoint)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Some runtimes' servers refuse the authority that gRPC makes of a socket's path.
		grpc.WithAuthority("localhost"),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrEndpoint, endpoint, err)
	}
	c := Observed(conn, observe)
	c.closer = conn
	return c, nil
}

// NewClient is a client over a connection that somebody else owns and closes.
func NewClient(conn grpc.ClientConnInterface) *Client {
	return Observed(conn, nil)
}

// Observed is [NewClient] for a connection whose calls are instructed to observe: the operation in
// the kubelet's words ("run_podsandbox"), how long it took and its error.
func Observed(conn grpc.ClientConnInterface, observe func(operation string, took time.Duration, err error)) *Client {
	l := limited{conn: conn, observe: observe}
	return &Client{
		RuntimeServiceClient: runtimeapi.NewRuntimeServiceClient(l),
		ImageServiceClient:   runtimeapi.NewImageServiceClient(l),
	}
}

// Close ends a connection that [Dial] made; for any other it does nothing.
func (c *Client) Close() error {
	if c.closer == nil {
		return nil
	}
	return c.closer.Close()
}

// socket is gRPC's name for an endpoint.
func socket(endpoint string) (string, error) {
	want := `it must be "unix:///" and the absolute path of a socket`
	if !strings.HasPrefix(endpoint, "unix:///") {
		return "", fmt.Errorf("%w: %q: %s", ErrEndpoint, endpoint, want)
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return "", fmt.Errorf("%w: %q: %s", ErrEndpoint, endpoint, want)
	}
	switch {
	case u.Scheme != "unix", u.Host != "", u.User != nil, u.RawQuery != "", u.Fragment != "", u.Opaque != "":
		return "", fmt.Errorf("%w: %q: %s", ErrEndpoint, endpoint, want)
	case !path.IsAbs(u.Path), path.Clean(u.Path) == "/", strings.HasSuffix(u.Path, "/"):
		return "", fmt.Errorf("%w: %q names no socket, %s", ErrEndpoint, endpoint, want)
	case len(u.Path) > 107: // sun_path of Linux
		return "", fmt.Errorf("%w: %q: the path of a socket has at most 107 bytes", ErrEndpoint, endpoint)
	}
	return "unix://" + u.EscapedPath(), nil
}
