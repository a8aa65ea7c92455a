package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const healthPrefix = "/grpc.health.v1.Health/"

// guard wraps every handler. From outside in: count the call, map the error,
// catch a panic, shorten the deadline, ask the authorizer, keep to the limits.
type guard struct {
	log    *slog.Logger
	auth   Authorizer
	gate   *gate
	rules  []Rule
	panics prometheus.Counter
	calls  *metrics
	spans  bool // are made by others, which pass the trace context too
}

func (g *guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	began, method := time.Now(), g.calls.of(info.FullMethod, unaryCall)
	method.started.Inc()
	method.received.Inc()
	if !g.spans {
		ctx = passTrace(ctx)
	}
	ctx, cancel := keepBack(ctx)
	defer cancel()
	resp, err := g.runUnary(ctx, req, info, handler)
	if err != nil {
		err = g.status(ctx, info.FullMethod, err)
		method.ended(began, err)
		return nil, err
	}
	method.sent.Inc()
	method.ended(began, nil)
	return resp, nil
}

func (g *guard) runUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer g.recover(ctx, info.FullMethod, &err)
	if strings.HasPrefix(info.FullMethod, healthPrefix) {
		return handler(ctx, req)
	}
	caller, err := g.authorize(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	client, err := g.gate.call(ctx, caller)
	if err != nil {
		return nil, err
	}
	if client != nil {
		defer g.gate.done(client)
		if client.fromAuthorizer {
			ctx = context.WithValue(ctx, clientKey{}, client)
		}
	}
	return handler(ctx, req)
}

func (g *guard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	began, method := time.Now(), g.calls.of(info.FullMethod, streamKind(info))
	method.started.Inc()
	if ctx := ss.Context(); !g.spans {
		if traced := passTrace(ctx); traced != ctx {
			ss = &within{ss, traced}
		}
	}
	err := g.runStream(srv, &counted{ss, method}, info, handler)
	if err != nil {
		err = g.status(ss.Context(), info.FullMethod, err)
	}
	method.ended(began, err)
	return err
}

func (g *guard) runStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer g.recover(ss.Context(), info.FullMethod, &err)
	if strings.HasPrefix(info.FullMethod, healthPrefix) {
		return handler(srv, ss)
	}
	caller, err := g.authorize(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	client, leave, err := g.gate.stream(ss.Context(), caller)
	if err != nil {
		return err
	}
	defer leave()
	if client != nil && client.fromAuthorizer {
		ss = &ofClient{ss, context.WithValue(ss.Context(), clientKey{}, client)}
	}
	return handler(srv, ss)
}

func (g *guard) recover(ctx context.Context, method string, err *error) {
	cause := recover()
	if cause == nil {
		return
	}
	g.panics.Inc()
	g.log.LogAttrs(ctx, slog.LevelError, "handler panicked",
		slog.String("method", method), slog.Any("panic", cause), slog.String("stack", string(debug.Stack())))
	*err = errPanic
}

var errPanic = status.Error(codes.Internal, "internal error")

func (g *guard) authorize(ctx context.Context, method string) (caller string, err error) {
	caller, err = g.auth.Authorize(ctx, method)
	if err == nil {
		return caller, nil
	}
	if _, ok := status.FromError(err); !ok {
		err = withInfo(status.New(codes.PermissionDenied, err.Error()), "PERMISSION_DENIED", nil).Err()
	}
	label := "permission_denied"
	if status.Code(err) == codes.Unauthenticated {
		label = "unauthenticated"
	}
	g.gate.refused.WithLabelValues(label).Inc()
	return "", err
}

func (g *guard) status(ctx context.Context, method string, err error) error {
	mapped := Status(err, g.rules)
	if status.Code(mapped) == codes.Internal && !errors.Is(err, errPanic) {
		g.log.LogAttrs(ctx, slog.LevelError, "call failed", slog.String("method", method), slog.Any("error", err))
	}
	return mapped
}

const (
	keptShare = 20                    // one part in this many of the caller's time is kept
	keptMost  = 20 * time.Millisecond // and no more than this
)

// keepBack takes a little from the caller's deadline, so that an answer made in
// the last moment still arrives.
func keepBack(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	kept := min(time.Until(deadline)/keptShare, keptMost)
	if kept <= 0 {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, deadline.Add(-kept), errCallersDeadline)
}

var errCallersDeadline = fmt.Errorf("rpc: caller's deadline: %w", context.DeadlineExceeded)
