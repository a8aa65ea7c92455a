package criruntime

import (
	"context"
	"path"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Fault is what a test does to calls of one name.
type Fault struct {
	// Match picks requests; nil takes all.
	Match func(request any) bool
	// Hang holds the call until it is cancelled or the fault is taken back; then it goes on.
	Hang bool
	// Err is answered instead of making the call.
	Err error
	// Lost makes the call but answers Unavailable, as when the connection broke in between.
	Lost bool
	// Times is how many calls it befalls; 0 is every one.
	Times int
}

// Inject lays a fault on calls of a method ("StopContainer"), streams as well. The function
// it returns takes it back and lets go of calls that hang.
func (s *Server) Inject(method string, f Fault) (remove func()) { return s.gate.inject(method, f) }

// SetDown makes the runtime unreachable: every call and stream ends with
// Unavailable. Containers go on. SetDown(false) brings it back.
func (s *Server) SetDown(down bool) {
	s.gate.setDown(down)
	if down {
		s.events.close(errDown)
	}
}

var errDown = status.Error(codes.Unavailable, "criruntime: the runtime is down")

// gate stands before every call.
type gate struct {
	mu     sync.Mutex
	down   bool
	falls  chan struct{} // closed when it goes down
	faults map[*fault]struct{}
}

type fault struct {
	Fault
	method  string
	removed chan struct{}
	left    int
}

func (g *gate) init() { g.falls, g.faults = make(chan struct{}), map[*fault]struct{}{} }

func (g *gate) setDown(down bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if down && !g.down {
		close(g.falls)
	}
	if !down && g.down {
		g.falls = make(chan struct{})
	}
	g.down = down
}

func (g *gate) close() { g.setDown(true) }

func (g *gate) inject(method string, f Fault) func() {
	x := &fault{Fault: f, method: method, removed: make(chan struct{}), left: f.Times}
	g.mu.Lock()
	g.faults[x] = struct{}{}
	g.mu.Unlock()
	return sync.OnceFunc(func() {
		g.mu.Lock()
		delete(g.faults, x)
		g.mu.Unlock()
		close(x.removed)
	})
}

// pick is the fault that befalls a call, if any.
func (g *gate) pick(method string, request any) (f *fault, falls chan struct{}, down bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.down {
		return nil, g.falls, true
	}
	for x := range g.faults {
		if x.method != method || (x.Match != nil && !x.Match(request)) {
			continue
		}
		if x.Times > 0 {
			x.left--
			if x.left == 0 {
				delete(g.faults, x)
			}
		}
		return x, g.falls, false
	}
	return nil, g.falls, false
}

// enter waits for a hanging fault and says whether the call is made at all.
func (g *gate) enter(ctx context.Context, method string, request any) (lost bool, err error) {
	x, falls, down := g.pick(method, request)
	switch {
	case down:
		return false, errDown
	case x == nil:
		return false, nil
	}
	if x.Hang {
		select {
		case <-x.removed:
		case <-falls:
			return false, errDown
		case <-ctx.Done():
			return false, status.FromContextError(ctx.Err()).Err()
		}
	}
	return x.Lost, x.Err
}

func (g *gate) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	lost, err := g.enter(ctx, path.Base(info.FullMethod), request)
	if err != nil {
		return nil, err
	}
	answer, err := next(ctx, request)
	if lost {
		return nil, status.Error(codes.Unavailable, "criruntime: the answer was lost")
	}
	return answer, err
}

// wrap puts the gate before each method of a service, whatever server it is registered on.
func (g *gate) wrap(desc grpc.ServiceDesc) *grpc.ServiceDesc {
	methods := make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: func(srv any, ctx context.Context, dec func(any) error, outer grpc.UnaryServerInterceptor) (any, error) {
			if outer == nil {
				return m.Handler(srv, ctx, dec, g.unary)
			}
			return m.Handler(srv, ctx, dec, func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				return outer(ctx, request, info, func(ctx context.Context, request any) (any, error) { return g.unary(ctx, request, info, next) })
			})
		}}
	}
	streams := make([]grpc.StreamDesc, len(desc.Streams))
	for i, m := range desc.Streams {
		streams[i] = m
		streams[i].Handler = func(srv any, stream grpc.ServerStream) error {
			if _, err := g.enter(stream.Context(), m.StreamName, nil); err != nil {
				return err
			}
			return m.Handler(srv, stream)
		}
	}
	desc.Methods, desc.Streams = methods, streams
	return &desc
}
