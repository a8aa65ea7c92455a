package rpc_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

const (
	tokenA, tokenB = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"
	bothTokens     = tokenA + " a\n" + tokenB + " b\n"
)

func with(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// Whether its handler receives or waits, a stream of a caller that lost its token ends.
func TestAStreamOfARevokedCallerEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(t *testing.T, path string)
		both   bool // callers lose their token
	}{
		"a token replaced by one as long, at the same time": {func(t *testing.T, path string) {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Dir(path), "tokens", "cccccccccccccccc a\n"+tokenB+" b\n")
			if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
				t.Fatal(err)
			}
		}, false},
		"a token of another caller": {func(t *testing.T, path string) {
			write(t, filepath.Dir(path), "tokens", tokenA+" c\n"+tokenB+" b\n")
		}, false},
		"a token for fewer methods": {func(t *testing.T, path string) {
			write(t, filepath.Dir(path), "tokens", tokenA+" a /other/*\n"+tokenB+" b\n")
		}, false},
		"an empty file":      {func(t *testing.T, path string) { write(t, filepath.Dir(path), "tokens", "") }, true},
		"a file of comments": {func(t *testing.T, path string) { write(t, filepath.Dir(path), "tokens", "# none\n\n") }, true},
		"a file that is deleted": {func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := write(t, t.TempDir(), "tokens", bothTokens)
			entered := make(chan struct{}, 4)
			b := start(t, rpc.ServerConfig{Auth: rpc.AuthConfig{TokenFile: path}}, rpc.Options{}, &echo{
				call: func(context.Context, string) error { return nil },
				stream: func(ss grpc.ServerStream) error {
					m := &wrapperspb.StringValue{}
					if err := ss.RecvMsg(m); err != nil {
						return err
					}
					entered <- struct{}{}
					if m.GetValue() == "wait" {
						<-ss.Context().Done()
						return ss.Context().Err()
					}
					return ss.RecvMsg(m)
				},
			}, rpc.DialConfig{})
			open := func(token, how string) grpc.ClientStream {
				s, err := b.conn.NewStream(with(t.Context(), token), &echoDesc.Streams[0], "/test.Echo/Stream")
				if err != nil {
					t.Fatal(err)
				}
				if err := s.SendMsg(wrapperspb.String(how)); err != nil {
					t.Fatal(err)
				}
				return s
			}
			lost := []grpc.ClientStream{open(tokenA, "wait"), open(tokenA, "receive")}
			kept := []grpc.ClientStream{open(tokenB, "wait"), open(tokenB, "receive")}
			for range 4 {
				<-entered
			}
			c.change(t, path)
			if c.both {
				lost, kept = append(lost, kept...), nil
			}
			for i, s := range lost {
				want := codes.Unauthenticated
				if name == "a token for fewer methods" {
					want = codes.PermissionDenied
				}
				if err := s.RecvMsg(&emptypb.Empty{}); rpc.Code(err) != want || rpc.Reason(err) != strings.ToUpper(map[codes.Code]string{
					codes.Unauthenticated: "unauthenticated", codes.PermissionDenied: "permission_denied",
				}[want]) {
					t.Errorf("stream %d: %v (%s), want %v", i, err, rpc.Reason(err), want)
				}
			}
			err := b.conn.Invoke(with(t.Context(), tokenA), echoCall, wrapperspb.String(""), &emptypb.Empty{})
			if rpc.Code(err) == codes.OK && name != "a token of another caller" {
				t.Error("a call with the token that was lost is answered")
			}
			for i, s := range kept {
				if err := s.Context().Err(); err != nil {
					t.Errorf("stream %d of the other caller has ended: %v", i, err)
				}
				if err := b.conn.Invoke(with(t.Context(), tokenB), echoCall, wrapperspb.String(""), &emptypb.Empty{}); err != nil {
					t.Errorf("a call of the other caller: %v", err)
				}
			}
		})
	}
}

func TestAnAnswerThatWasWaitedForIsNotGivenToARevokedCaller(t *testing.T) {
	t.Parallel()
	path := write(t, t.TempDir(), "tokens", bothTokens)
	entered, release := make(chan struct{}), make(chan struct{})
	b := start(t, rpc.ServerConfig{Auth: rpc.AuthConfig{TokenFile: path}}, rpc.Options{}, &echo{call: func(_ context.Context, s string) error {
		if s == "wait" {
			close(entered)
			<-release
		}
		return nil
	}, stream: func(ss grpc.ServerStream) error {
		<-ss.Context().Done()
		return nil
	}}, rpc.DialConfig{})
	open, err := b.conn.NewStream(with(t.Context(), tokenA), &echoDesc.Streams[0], "/test.Echo/Stream")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- b.conn.Invoke(with(t.Context(), tokenA), echoCall, wrapperspb.String("wait"), &emptypb.Empty{})
	}()
	<-entered
	write(t, filepath.Dir(path), "tokens", tokenB+" b\n")
	if err := open.RecvMsg(&emptypb.Empty{}); rpc.Code(err) != codes.Unauthenticated {
		t.Fatalf("the stream: %v, want Unauthenticated", err)
	}
	close(release)
	if err := <-done; rpc.Code(err) != codes.Unauthenticated {
		t.Errorf("the call that waited: %v, want Unauthenticated", err)
	}
}

// lines is a log that may be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

func TestAMalformedTokenFileLeavesTheLastGoodOneInUseForAWhile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := write(t, dir, "tokens", bothTokens)
	synctest.Test(t, func(t *testing.T) {
		log := &lines{}
		tokens, err := rpc.NewTokens(rpc.AuthConfig{TokenFile: path, TokenFileGrace: 5 * time.Minute}, slog.New(slog.NewTextHandler(log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var changes atomic.Int64
		watched := make(chan struct{})
		go func() { defer close(watched); tokens.Watch(ctx, func() { changes.Add(1) }) }()
		accepted := func(token string) bool {
			_, err := tokens.Authorize(metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+token)), echoCall)
			return err == nil
		}
		after := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		after(time.Second)
		if !accepted(tokenA) || tokens.Check(ctx) != nil {
			t.Fatalf("with a good file: %v", tokens.Check(ctx))
		}
		write(t, dir, "tokens", "a-secret-without-a-name\n")
		after(time.Second)
		if err := tokens.Check(ctx); !accepted(tokenA) || err == nil || !strings.Contains(err.Error(), "line 1") || strings.Contains(err.Error(), "secret") {
			t.Errorf("with a malformed file: accepted %t, %v", accepted(tokenA), err)
		}
		after(2 * time.Minute)
		write(t, dir, "tokens", "another malformed one [\n") // does not lengthen the time
		after(3*time.Minute - 3*time.Second)
		if !accepted(tokenA) || changes.Load() != 0 {
			t.Errorf("just before the time is over: accepted %t after %d changes", accepted(tokenA), changes.Load())
		}
		after(4 * time.Second)
		if accepted(tokenA) || changes.Load() != 1 {
			t.Errorf("after the time: accepted %t after %d changes, want refused after one", accepted(tokenA), changes.Load())
		}
		if cannot, over := log.count("cannot be used: tokens of its last good"), log.count("for too long"); cannot != 2 || over != 1 || log.count("secret") != 0 {
			t.Errorf("the log names the fault %d times and the end %d times, want 2 and 1 and no token: %s", cannot, over, log.buf.String())
		}
		write(t, dir, "tokens", tokenB+" b\n")
		after(time.Second)
		if accepted(tokenA) || !accepted(tokenB) || tokens.Check(ctx) != nil || log.count("good again") != 1 {
			t.Errorf("with a good file again: %t %t %v", accepted(tokenA), accepted(tokenB), tokens.Check(ctx))
		}
		cancel()
		<-watched
	})
}

func TestATokenFileThatIsGoneIsNamed(t *testing.T) {
	t.Parallel()
	path := write(t, t.TempDir(), "tokens", bothTokens)
	reg, log := prometheus.NewRegistry(), &lines{}
	b := start(t, rpc.ServerConfig{Auth: rpc.AuthConfig{TokenFile: path}},
		rpc.Options{Registry: reg, Log: slog.New(slog.NewTextHandler(log, nil))}, &echo{call: func(context.Context, string) error { return nil }}, rpc.DialConfig{})
	if err := b.srv.CheckAuthorizer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for rpc.Code(b.conn.Invoke(with(t.Context(), tokenA), echoCall, wrapperspb.String(""), &emptypb.Empty{})) != codes.Unauthenticated {
		if t.Context().Err() != nil {
			t.Fatal("the token is still accepted")
		}
	}
	if err := b.srv.CheckAuthorizer(t.Context()); err == nil || !strings.Contains(err.Error(), "every call is refused") {
		t.Errorf("Check() = %v", err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "deltaplane_rpc_authorizer_faulty" && f.GetMetric()[0].GetGauge().GetValue() == 1 && log.count("token file has no token") == 1 {
			return
		}
	}
	t.Errorf("no metric says so, or no line of the log: %s", log.buf.String())
}
