package criruntime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/journal"
)

// ErrClosed says that the runtime was closed.
var ErrClosed = errors.New("criruntime: closed")

// maxMessage is what a list of several thousand containers with their annotations needs.
const maxMessage = 64 << 20

// Server is a simulated container runtime. It is safe for concurrent use.
type Server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	cfg       Config
	gate      gate
	events    broadcast
	replanned chan struct{}

	// mu guards all below, and holds the order of state, journal and events together.
	mu         sync.Mutex
	state      *state
	journal    *journal.Log // nil in memory
	conditions map[string]*runtimeapi.RuntimeCondition
	closed     bool

	stop    chan struct{}
	wait    sync.WaitGroup
	servers []*grpc.Server
	conn    *grpc.ClientConn
	direct  *direct
	pipe    *bufconn.Listener
	lock    *os.File
}

// New starts a runtime; with a Dir it goes on where the last one stopped. Errors:
// every fault of the configuration together, dirlock.ErrTaken when another process
// holds the Dir, [ErrCorrupt] when the journal cannot be read.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("criruntime config: %w", err)
	}
	cfg = cfg.withDefaults()
	s := &Server{cfg: cfg, state: newState(), replanned: make(chan struct{}, 1), conditions: goodConditions(), pipe: bufconn.Listen(256 << 10), stop: make(chan struct{})}
	s.gate.init()
	if err := s.open(); err != nil {
		return nil, err
	}
	if err := s.dial(); err != nil {
		return nil, errors.Join(err, s.closeFiles())
	}
	s.mu.Lock()
	s.endDue(time.Now())
	s.mu.Unlock()
	s.wait.Go(s.runTimers)
	s.serve(s.pipe)
	return s, nil
}

func (s *Server) dial() error {
	conn, err := grpc.NewClient("passthrough:criruntime",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.pipe.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return fmt.Errorf("criruntime: %w", err)
	}
	s.conn, s.direct = conn, &direct{stream: conn, methods: map[string]method{}}
	s.Register(s.direct)
	return nil
}

// Register puts both services on the caller's gRPC server, which it stops before Close.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	r.RegisterService(s.gate.wrap(runtimeapi.RuntimeService_ServiceDesc), s)
	r.RegisterService(s.gate.wrap(runtimeapi.ImageService_ServiceDesc), s)
}

// Conn is a connection to the runtime within this process, which answers as one over a
// socket would: calls are made without the wire, streams are gRPC's. It is the
// server's own: callers do not close it.
func (s *Server) Conn() grpc.ClientConnInterface { return s.direct }

// Listen serves the runtime on a unix socket as well, until Close. A socket left by a
// process that was killed is replaced.
func (s *Server) Listen(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("criruntime: %w", err)
	}
	lis, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("criruntime: %w", err)
	}
	s.serve(lis)
	return nil
}

func (s *Server) serve(lis net.Listener) {
	g := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	s.Register(g)
	s.mu.Lock()
	s.servers = append(s.servers, g)
	s.mu.Unlock()
	s.wait.Go(func() {
		if err := g.Serve(lis); err != nil {
			s.cfg.Log.Error("serving the runtime ended", slog.Any("error", err))
		}
	})
}

// Close stops serving. With a Dir everything is kept, and running containers go on by
// the clock. A second Close does nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	servers := s.servers
	s.mu.Unlock()
	s.gate.close()
	s.events.close(ErrClosed)
	err := s.conn.Close()
	for _, g := range servers {
		g.Stop()
	}
	close(s.stop)
	s.wait.Wait()
	return errors.Join(err, s.closeFiles())
}

// commit writes a change down, makes it, and tells the stream of it. The mutex is held.
func (s *Server) commit(r record, events ...event) error {
	if s.closed {
		return ErrClosed
	}
	if s.journal != nil {
		if err := s.keep(r); err != nil {
			return fmt.Errorf("criruntime: journal: %w", err)
		}
	}
	if err := s.state.apply(r); err != nil {
		return err
	}
	for _, e := range events {
		s.publish(e)
	}
	if s.journal != nil {
		if err := s.compact(); err != nil {
			s.cfg.Log.Warn("the journal cannot be compacted", slog.Any("error", err))
		}
	}
	return nil
}
