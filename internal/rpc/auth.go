package rpc

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// An Authorizer decides who may call what. Method is the full gRPC name,
// "/deltaplane.queue.v1.QueueService/Add". An error that is not a status
// already is answered PERMISSION_DENIED. Health checks are never asked about.
// It must be safe for concurrent use.
//
// Caller names who calls, from a set that does not grow with the calls; the
// limits per client are kept by it. When it is empty the client is the
// connection's certificate, or the host the connection comes from.
type Authorizer interface {
	Authorize(ctx context.Context, method string) (caller string, err error)
}

// AllowAll lets everybody call everything.
type AllowAll struct{}

// Authorize names nobody and returns nil.
func (AllowAll) Authorize(context.Context, string) (string, error) { return "", nil }

// Tokens lets in callers that present a known bearer token in the
// "authorization" header, for the methods their token names.
type Tokens struct {
	grants *files[map[[sha256.Size]byte]grant]
}

type grant struct {
	name    string
	methods []string
}

// NewTokens reads a token file, and reads it again when it changes. Each line
// is
//
//	TOKEN NAME [METHOD...]
//
// where METHOD is a pattern over full method names as path.Match knows them
// ("/deltaplane.index.v1.IndexService/*"); without any, all methods are
// allowed. Empty lines and lines that begin with # are skipped. A token has at
// least 16 characters.
func NewTokens(file string) (*Tokens, error) {
	grants, err := openFiles(func() (map[[sha256.Size]byte]grant, error) {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("rpc: token file: %w", err)
		}
		return parseTokens(data)
	}, file)
	if err != nil {
		return nil, err
	}
	return &Tokens{grants: grants}, nil
}

func parseTokens(data []byte) (map[[sha256.Size]byte]grant, error) {
	grants := map[[sha256.Size]byte]grant{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		// Errors name the line, never the token.
		if len(fields) < 2 {
			return nil, fmt.Errorf("rpc: token file line %d: want TOKEN NAME [METHOD...]", n)
		}
		if len(fields[0]) < 16 {
			return nil, fmt.Errorf("rpc: token file line %d: token is shorter than 16 characters", n)
		}
		for _, pattern := range fields[2:] {
			if _, err := path.Match(pattern, ""); err != nil {
				return nil, fmt.Errorf("rpc: token file line %d: method pattern %q: %w", n, pattern, err)
			}
		}
		grants[sha256.Sum256([]byte(fields[0]))] = grant{name: fields[1], methods: fields[2:]}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("rpc: token file: %w", err)
	}
	if len(grants) == 0 {
		return nil, errors.New("rpc: token file holds no token")
	}
	return grants, nil
}

// Authorize answers UNAUTHENTICATED without a known token, and
// PERMISSION_DENIED when the token does not cover the method. The caller is the
// token's name.
func (t *Tokens) Authorize(ctx context.Context, method string) (string, error) {
	// A token is looked up by its hash, so that timing tells nothing about it.
	var token string
	if values := metadata.ValueFromIncomingContext(ctx, "authorization"); len(values) > 0 {
		scheme, rest, _ := strings.Cut(values[0], " ")
		if strings.EqualFold(scheme, "bearer") {
			token = strings.TrimSpace(rest)
		}
	}
	g, ok := t.grants.get()[sha256.Sum256([]byte(token))]
	if token == "" || !ok {
		return "", withInfo(status.New(codes.Unauthenticated, "a valid bearer token is needed"), "UNAUTHENTICATED", nil).Err()
	}
	if len(g.methods) == 0 {
		return g.name, nil
	}
	for _, pattern := range g.methods {
		if ok, _ := path.Match(pattern, method); ok {
			return g.name, nil
		}
	}
	return "", fmt.Errorf("rpc: %s may not call %s", g.name, method)
}

func newAuthorizer(c AuthConfig) (Authorizer, error) {
	if c.Mode == AuthTokens {
		return NewTokens(c.TokenFile)
	}
	return AllowAll{}, nil
}
