// Package caller calls services with the rights of one caller: its bearer token and nothing else.
//
// In come a connection to a service and a token. Out comes a connection whose calls carry that
// token. Where the console has rights of its own that a service could take the calls by, nothing is
// called before the service has said that it goes by the token.
package caller

import (
	"context"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/internal/rpc"
	accessv1 "github.com/deltaplane/deltaplane/proto/deltaplane/access/v1"
)

const (
	// askedFor is how long an answer counts that a service goes by the token. Services end by
	// themselves what is open when a token is taken back.
	askedFor    = 10 * time.Second
	askedWithin = 3 * time.Second
)

// Conn is a connection to one service for one caller. It is safe for concurrent use.
type Conn struct {
	base    grpc.ClientConnInterface
	token   string
	options []grpc.CallOption
	prove   bool

	turn   chan struct{} // has room for who asks
	proven time.Time     // when the service last said that it goes by the token; for who has the turn
}

// New is a connection for the bearer of a token, or for a caller without one where it is empty.
// With prove the service must say that it goes by the token before it is called.
func New(base grpc.ClientConnInterface, token string, prove bool) *Conn {
	c := &Conn{base: base, token: token, prove: prove, turn: make(chan struct{}, 1)}
	if token != "" {
		c.options = []grpc.CallOption{grpc.PerRPCCredentials(bearer(token))}
	}
	return c
}

// Invoke implements [grpc.ClientConnInterface].
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if err := c.may(ctx); err != nil {
		return err
	}
	return c.base.Invoke(ctx, method, args, reply, slices.Concat(opts, c.options)...)
}

// NewStream implements [grpc.ClientConnInterface].
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := c.may(ctx); err != nil {
		return nil, err
	}
	return c.base.NewStream(ctx, desc, method, slices.Concat(opts, c.options)...)
}

// may asks the service whether it goes by the token. A service that asks for no tokens would do
// everything for everybody whom the console's certificate lets in.
func (c *Conn) may(ctx context.Context) error {
	if !c.prove {
		return nil
	}
	if c.token == "" {
		return refusal(codes.Unauthenticated, "TOKEN_REQUIRED", "a bearer token is required")
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	if time.Since(c.proven) < askedFor {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askedWithin)
	defer cancel()
	who := new(accessv1.WhoAmIResponse)
	if err := c.base.Invoke(ctx, accessv1.AccessService_WhoAmI_FullMethodName, &accessv1.WhoAmIRequest{}, who, c.options...); err != nil {
		return err
	}
	switch who.GetSource() {
	case accessv1.Source_SOURCE_TOKEN_FILE, accessv1.Source_SOURCE_CLUSTER:
		c.proven = time.Now()
		return nil
	}
	return refusal(codes.PermissionDenied, "TOKEN_NOT_ASKED_FOR", "the service does not go by callers' tokens, so that the console cannot call it for others")
}

func refusal(code codes.Code, reason, message string) error {
	st, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: rpc.Domain})
	if err != nil {
		return status.Error(code, message)
	}
	return st.Err()
}

// bearer presents a token with a call.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. Whether tokens may travel in
// plain text is decided when the console is configured.
func (bearer) RequireTransportSecurity() bool { return false }
