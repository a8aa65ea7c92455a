package rpc

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/certs"
)

// An Authorizer decides who may call what. Method is the full gRPC name,
// "/deltaplane.queue.v1.QueueService/Add". An error that is not a status
// already is answered PERMISSION_DENIED. Health checks are never asked about.
// It must be safe for concurrent use.
//
// The identity says who calls; the limits per client are kept by its name, and
// [Caller] returns it. When it is nil the client is the connection's certificate,
// or the host the connection comes from.
type Authorizer interface {
	Authorize(ctx context.Context, method string) (*access.Identity, error)
}

// AllowAll lets everybody call everything.
type AllowAll struct{}

// Authorize names nobody and returns nil.
func (AllowAll) Authorize(context.Context, string) (*access.Identity, error) { return nil, nil }

// A Revoker is an [Authorizer] whose answers may become refusals later.
type Revoker interface {
	Authorizer
	// Watch calls changed after each change of what is authorized, until ctx ends.
	Watch(ctx context.Context, changed func())
	// Check says what is wrong with what the answers are made from, which may be
	// used nevertheless: nil, or an error for people. It must be quick.
	Check(ctx context.Context) error
}

// Tokens lets in callers that present a known bearer token in the
// "authorization" header, for the methods their token names.
//
// A token that is gone from the file is refused within a second. A file that is
// deleted, or has no token in it, refuses all. One that cannot be read, or has a
// line that cannot be understood, leaves the last good one in use for a while,
// and all are refused after that: see [AuthConfig].
type Tokens struct {
	file  string
	grace time.Duration
	log   *slog.Logger

	mu      sync.Mutex // guards what follows
	grants  map[[sha256.Size]byte]grant
	content [sha256.Size]byte
	checked time.Time
	fault   error     // why the file is not used as it is
	until   time.Time // when the last good version ends; zero without a fault, or when it has ended
	version int       // of the grants
}

type grant struct {
	id      *access.Identity
	methods []string
}

// tokensPolled is how often the token file is looked at.
const tokensPolled = 400 * time.Millisecond

// NewTokens reads the token file, and reads it again when its content changes:
// when a call asks and a second has passed, and during [Tokens.Watch]. Each line is
//
//	TOKEN NAME [groups=GROUP,GROUP...] [METHOD...]
//
// where METHOD is a pattern over full method names as path.Match knows them
// ("/deltaplane.index.v1.IndexService/*"); without any, all methods are
// allowed. Empty lines and lines that begin with # are skipped. A token has at
// least 16 characters. In its place a line may have its SHA-256 in hexadecimal
// digits, as sha256:HEX ([HashedToken]): one who reads the file can then not call
// with what it holds. To begin with, a file without a token is an error. Errors
// name the line and show no token. A nil log discards.
func NewTokens(c AuthConfig, log *slog.Logger) (*Tokens, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	t := &Tokens{file: c.TokenFile, grace: cmp.Or(c.TokenFileGrace, defaultTokenFileGrace), log: log}
	t.refresh(time.Now())
	if t.fault != nil {
		return nil, t.fault
	}
	return t, nil
}

var errNoToken = errors.New("rpc: token file holds no token")

// refresh looks at the file. t.mu is locked, or t is not shared yet.
func (t *Tokens) refresh(now time.Time) {
	t.checked = now
	data, err := os.ReadFile(t.file)
	gone := errors.Is(err, fs.ErrNotExist)
	content := sha256.Sum256(data)
	if err == nil && t.grants != nil && content == t.content {
		t.expire(now)
		return
	}
	var grants map[[sha256.Size]byte]grant
	if err != nil {
		err = fmt.Errorf("rpc: token file: %w", err)
	} else {
		grants, err = parseTokens(data)
	}
	switch {
	case err == nil:
		if t.fault != nil {
			t.log.Info("token file is good again", slog.String("path", t.file), slog.Int("count", len(grants)))
		}
		t.grants, t.content, t.fault, t.until = grants, content, nil, time.Time{}
		t.version++
		return
	case t.grants == nil: // the first look
	case gone || errors.Is(err, errNoToken):
		if len(t.grants) > 0 {
			t.log.Error("token file has no token: every call is refused", slog.String("path", t.file), slog.Any("error", err))
			t.version++
		}
		t.grants, t.until = map[[sha256.Size]byte]grant{}, time.Time{}
	case t.fault == nil || content != t.content && len(t.grants) > 0:
		if t.until.IsZero() {
			t.until = now.Add(t.grace)
		}
		t.log.Error("token file cannot be used: tokens of its last good version are accepted for a while",
			slog.String("path", t.file), slog.Duration("after", t.until.Sub(now)), slog.Any("error", err))
	}
	t.fault, t.content = err, content
	t.expire(now)
}

// expire ends the last good version when its time is over. t.mu is locked.
func (t *Tokens) expire(now time.Time) {
	if t.until.IsZero() || now.Before(t.until) {
		return
	}
	t.log.Error("token file cannot be used for too long: every call is refused", slog.String("path", t.file), slog.Any("error", t.fault))
	t.grants, t.until = map[[sha256.Size]byte]grant{}, time.Time{}
	t.version++
}

// Watch implements [Revoker].
func (t *Tokens) Watch(ctx context.Context, changed func()) {
	tick := time.NewTicker(tokensPolled)
	defer tick.Stop()
	t.mu.Lock()
	seen := t.version
	t.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			t.mu.Lock()
			t.refresh(now)
			version := t.version
			t.mu.Unlock()
			if version != seen {
				seen = version
				changed()
			}
		}
	}
}

// Check implements [Revoker].
func (t *Tokens) Check(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.fault == nil:
		return nil
	case t.until.IsZero():
		return fmt.Errorf("every call is refused: %w", t.fault)
	}
	return fmt.Errorf("tokens of the last good file are accepted until %s: %w", t.until.UTC().Format(time.RFC3339), t.fault)
}

// look is the grant of a token.
func (t *Tokens) look(token string) (grant, bool) {
	// By its hash, so that timing tells nothing about it.
	key := sha256.Sum256([]byte(token))
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.checked) >= certs.Recheck {
		t.refresh(now)
	}
	g, ok := t.grants[key]
	return g, ok
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
		key, err := tokenKey(fields[0])
		if err != nil {
			return nil, fmt.Errorf("rpc: token file line %d: %w", n, err)
		}
		id := &access.Identity{User: fields[1], Source: access.TokenFile}
		methods := fields[2:]
		if len(methods) > 0 {
			if groups, ok := strings.CutPrefix(methods[0], "groups="); ok {
				if id.Groups, methods = strings.Split(groups, ","), methods[1:]; slices.Contains(id.Groups, "") {
					return nil, fmt.Errorf("rpc: token file line %d: groups: one of them is empty", n)
				}
			}
		}
		for _, pattern := range methods {
			if _, err := path.Match(pattern, ""); err != nil {
				return nil, fmt.Errorf("rpc: token file line %d: method pattern %q: %w", n, pattern, err)
			}
		}
		grants[key] = grant{id: id, methods: methods}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("rpc: token file: %w", err)
	}
	if len(grants) == 0 {
		return nil, errNoToken
	}
	return grants, nil
}

// tokenKey is the hash of the token of a line, which may be there in its place.
func tokenKey(field string) (key [sha256.Size]byte, err error) {
	if scheme, digits, ok := strings.Cut(field, ":"); ok && strings.EqualFold(scheme, "sha256") {
		sum, err := hex.DecodeString(digits)
		if err != nil || len(sum) != len(key) {
			return key, fmt.Errorf("sha256: want %d hexadecimal digits", 2*len(key))
		}
		return [sha256.Size]byte(sum), nil
	}
	return hashToken(field)
}

func hashToken(token string) (key [sha256.Size]byte, err error) {
	if len(token) < 16 {
		return key, errors.New("token is shorter than 16 characters")
	}
	return sha256.Sum256([]byte(token)), nil
}

// HashedToken is what a line of a token file may have in place of the token. A token
// that is shorter than 16 characters, or has white space in it, is an error, which
// does not show it.
func HashedToken(token string) (string, error) {
	sum, err := hashToken(token)
	switch {
	case err != nil:
		return "", fmt.Errorf("rpc: %w", err)
	case strings.ContainsFunc(token, unicode.IsSpace):
		return "", errors.New("rpc: token has white space in it")
	}
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// BearerToken is the token that a call presents in its "authorization" header.
func BearerToken(ctx context.Context) (token string, presented bool) {
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(values) == 0 {
		return "", false
	}
	return Bearer(values[0]), true
}

// Bearer is the token in the value of an "authorization" header, empty for another scheme.
func Bearer(header string) string {
	scheme, rest, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(rest)
}

// Authorize answers UNAUTHENTICATED without a known token, and
// PERMISSION_DENIED when the token does not cover the method. The user is the
// token's name.
func (t *Tokens) Authorize(ctx context.Context, method string) (*access.Identity, error) {
	token, _ := BearerToken(ctx)
	return t.Presented(token, method)
}

// Presented is Authorize of a token, for what is asked otherwise than by gRPC; the
// method may be a path.
func (t *Tokens) Presented(token, method string) (*access.Identity, error) {
	g, ok := t.look(token)
	if token == "" || !ok {
		return nil, withInfo(status.New(codes.Unauthenticated, "a valid bearer token is needed"), "UNAUTHENTICATED", nil).Err()
	}
	if len(g.methods) == 0 {
		return g.id, nil
	}
	for _, pattern := range g.methods {
		if ok, _ := path.Match(pattern, method); ok {
			return g.id, nil
		}
	}
	return nil, fmt.Errorf("rpc: %s may not call %s", g.id.User, method)
}

func newAuthorizer(c AuthConfig, log *slog.Logger) (Authorizer, error) {
	switch c.Mode {
	case AuthIdentities:
		return nil, fmt.Errorf("rpc: auth mode %q needs a policy file or a cluster that decides", c.Mode)
	case AuthTokens:
		return NewTokens(c, log)
	}
	return AllowAll{}, nil
}
