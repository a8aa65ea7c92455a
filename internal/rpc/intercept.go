package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/core/access"
)

// guard wraps every handler. From outside in: count the call, map the error,
// catch a panic, shorten the deadline, ask the authorizer, keep to the limits.
type guard struct {
	log    *slog.Logger
	auth   Authorizer
	gate   *gate
	rules  []Rule
	panics prometheus.Counter
	calls  *metrics
	tracer trace.TracerProvider // nil: no spans

	revisable *revisable
	methods   map[string]*reception // by full name; complete before calls come
	unmarshal func(mem.BufferSlice, any) error
	allow     func(ctx context.Context, method string, req any) error // nil: all
}

// unary runs a handler, which reads its message by itself.
func (g *guard) unary(
	ctx context.Context, name string, read func(any) error, handler func(context.Context, func(any) error) (any, error),
) (any, error) {
	began, method := time.Now(), g.calls.of(name, unaryCall)
	method.started.Inc()
	ctx, cancel := keepBack(passTrace(ctx))
	defer cancel()
	var span trace.Span
	var unread error // why there is no message: the client's fault, and a status
	resp, err := g.runUnary(ctx, name, func(ctx context.Context) (any, error) {
		ctx, span = beginSpan(ctx, g.tracer, name) // of callers that may call, and of nobody else
		return handler(ctx, func(req any) error {
			if unread = read(req); unread != nil {
				return unread
			}
			method.received.Inc()
			return g.permitted(ctx, name, req)
		})
	})
	if err != nil {
		if unread == nil {
			err = g.status(ctx, name, err)
		}
		method.ended(began, err, span)
		endSpan(span, err)
		return nil, err
	}
	method.sent.Inc()
	method.ended(began, nil, span)
	endSpan(span, nil)
	return resp, nil
}

// permitted asks whether the caller may do what a message says, now and when that has changed by
// the time of the answer.
func (g *guard) permitted(ctx context.Context, name string, req any) error {
	call := callOf(ctx)
	if g.allow == nil || call == nil {
		return nil
	}
	check := func(ctx context.Context) error { return g.allow(ctx, name, req) }
	call.mu.Lock()
	call.checks = append(call.checks, check)
	call.mu.Unlock()
	return check(ctx)
}

func (g *guard) runUnary(ctx context.Context, name string, handler func(context.Context) (any, error)) (resp any, err error) {
	defer g.recover(ctx, name, &err)
	version := g.revisable.version.Load()
	id, public, err := g.permit(ctx, name)
	if err != nil {
		return nil, err
	}
	if public {
		leave, err := g.gate.public(ctx)
		if err != nil {
			return nil, err
		}
		defer leave()
		return handler(ctx)
	}
	client, err := g.gate.call(ctx, id.Name())
	if err != nil {
		return nil, err
	}
	if client != nil {
		defer g.gate.done(client)
	}
	if id == nil {
		return handler(ctx)
	}
	call := &calling{client: client, id: id}
	ctx = context.WithValue(ctx, callingKey{}, call)
	resp, err = handler(ctx)
	if g.revisable.version.Load() != version { // what came of a wait is nobody's who may not call any more
		if err := g.revised(ctx, name, call); err != nil {
			return nil, err
		}
	}
	return resp, err
}

func (g *guard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	began, method := time.Now(), g.calls.of(info.FullMethod, streamKind(info))
	method.started.Inc()
	// A stream's life is no step of a trace: it has no span.
	if traced := passTrace(ss.Context()); traced != ss.Context() {
		ss = &within{ss, traced}
	}
	if m := g.methods[info.FullMethod]; m != nil && m.largest > 0 {
		ss = &boundedStream{ss, g.bounded(ss.Context(), ss.RecvMsg, m.largest, info.IsClientStream)}
	}
	err := g.runStream(srv, &counted{ss, method}, info, handler)
	if err != nil {
		err = g.status(ss.Context(), info.FullMethod, err)
	}
	method.ended(began, err, nil)
	return err
}

func (g *guard) runStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer g.recover(ss.Context(), info.FullMethod, &err)
	version := g.revisable.version.Load()
	id, public, err := g.permit(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	if public {
		leave, err := g.gate.public(ss.Context())
		if err != nil {
			return err
		}
		defer leave()
		return handler(srv, ss)
	}
	client, leave, err := g.gate.stream(ss.Context(), id.Name())
	if err != nil {
		return err
	}
	defer leave()
	if id == nil {
		return handler(srv, ss)
	}
	call := &calling{client: client, id: id}
	open := &openStream{ctx: context.WithValue(ss.Context(), callingKey{}, call), method: info.FullMethod, call: call}
	defer g.revisable.add(open)()
	if g.revisable.version.Load() != version {
		if err := g.revised(open.ctx, open.method, call); err != nil {
			return err
		}
	}
	err = handler(srv, &ofClient{ss, open.ctx})
	if why := open.revoked.Load(); why != nil {
		return *why // its client was answered so already
	}
	return err
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

func (g *guard) authorize(ctx context.Context, method string) (*access.Identity, error) {
	conn, _ := ctx.Value(connectionKey{}).(*connection)
	id, err := g.auth.Authorize(ctx, method)
	if err == nil {
		if conn != nil {
			g.gate.authorized(conn)
		}
		return id, nil
	}
	if _, ok := status.FromError(err); !ok && ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	} else if !ok {
		err = withInfo(status.New(codes.PermissionDenied, err.Error()), "PERMISSION_DENIED", nil).Err()
	}
	label := "permission_denied"
	if status.Code(err) == codes.Unauthenticated {
		label = "unauthenticated"
	}
	g.gate.refused.WithLabelValues(label).Inc()
	if conn != nil {
		g.gate.unauthorized(conn)
	}
	return nil, err
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
