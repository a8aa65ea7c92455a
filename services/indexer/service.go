package indexer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/encoding"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/checkpoint"
)

// deltaLog is what the indexer needs of the log; *stream.Conn has it.
type deltaLog interface {
	Collections(ctx context.Context) ([]delta.Collection, error)
	Read(ctx context.Context, col delta.Collection, cfg stream.ReadConfig, h stream.Handler) error
	Tail(ctx context.Context, col delta.Collection) (stream.Tail, error)
	TombstoneTTL() time.Duration
	Healthy() bool
	Bucket(ctx context.Context, name string, ttl time.Duration) (*stream.Bucket, error)
}

// Service is an indexer. Make it with New, run it once.
type Service struct {
	cfg     Config
	log     deltaLog
	slog    *slog.Logger
	tracer  trace.Tracer
	metrics *metrics
	rpc     *rpc.Server
	admin   *telemetry.Admin
	pins    *pins
	tokens  *signer

	files        *checkpoint.Dir // nil when none are kept
	unsaving     atomic.Bool     // some cannot be written, which was logged
	naming       sync.Mutex      // held to replace names
	declarations *declarations

	names      atomic.Pointer[names]
	discovered atomic.Bool
	ready      atomic.Bool // every log found at first has been replayed; stays
	watchers   quota
	reclaimed  reclaimed
	requests   quota           // bytes that requests hold while they wait
	scans      chan struct{}   // one place: what slow readers missed is looked for one collection at a time
	lines      lines           // of the initial states
	stopping   <-chan struct{} // closed when calls that last are to end
}

// New builds an indexer that follows log, usually a *stream.Conn, and reports
// through tel. It opens nothing. The error holds every fault of the
// configuration.
func New(cfg Config, log deltaLog, tel *telemetry.Telemetry) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if cfg.Replica == "" {
		cfg.Replica = rand.Text()[:10]
	}
	s := &Service{
		cfg: cfg, log: log, slog: tel.Log, tracer: tel.Tracer.Tracer("deltaplane/indexer"),
		pins: newPins(cfg.MaxSnapshots, cfg.SnapshotTTL, cfg.SnapshotMaxAge, cfg.SnapshotBytes), tokens: newSigner(),
		scans: make(chan struct{}, 1), lines: newLines(&cfg),
		watchers: quota{all: limit{"max_watchers", cfg.MaxWatchers}, each: limit{"max_client_watchers", cfg.MaxClientWatchers}},
		requests: quota{all: limit{"max_request_bytes", cfg.MaxRequestBytes}, each: limit{"max_client_request_bytes", cfg.MaxRequestBytes / 2}},
	}
	s.names.Store(&names{})
	s.declarations = newDeclarations(log, tel.Log, s.redeclare)
	for _, name := range cfg.Collections {
		id, err := delta.ParseCollection(name)
		if err != nil {
			return nil, err
		}
		s.know(id)
	}
	var err error
	if s.metrics, err = newMetrics(tel.Registry); err != nil {
		return nil, fmt.Errorf("indexer metrics: %w", err)
	}
	if err := tel.Registry.Register(gauges{s}); err != nil {
		return nil, fmt.Errorf("indexer metrics: %w", err)
	}
	for _, c := range s.names.Load().all {
		c.metrics = s.metrics
	}
	gather := gathers
	if cfg.CopyFrames {
		gather = nil
	}
	s.rpc, err = rpc.NewServer(cfg.RPC, rpc.Options{
		Log: tel.Log, Registry: tel.Registry, Tracer: tel.Tracer, Rules: rules,
		Extra: serverOptions(cfg.CopyFrames, cfg.RPC.TLS.CertFile != ""), Gather: gather,
		MessageBytes: requestBytes(), Unmarshal: codec{CodecV2: encoding.GetCodecV2("proto")}.Unmarshal,
	})
	if err != nil {
		return nil, err
	}
	s.stopping = s.rpc.Stopping()
	s.rpc.RegisterService(&serviceDesc, &server{Service: s})
	if s.admin, err = telemetry.NewAdmin(cfg.Admin, tel.Registry, tel.Log); err != nil {
		return nil, err
	}
	s.admin.Ready("serving", s.rpc.Ready)
	s.admin.Ready("authorization", telemetry.Degrades(s.rpc.CheckAuthorizer))
	s.admin.Ready("log", telemetry.Degrades(s.checkLog))
	s.admin.Ready("checkpoints", telemetry.Degrades(s.checkFiles))
	s.admin.Ready("replayed", s.checkReplayed)
	return s, nil
}

// Addr is where the IndexService listens; it waits until Run has opened it.
func (s *Service) Addr(ctx context.Context) (string, error) { return s.rpc.Addr(ctx) }

// Run follows the logs and answers until ctx ends; then health turns
// NOT_SERVING, watches are told to go elsewhere, and it returns nil. The logs
// are followed until the last call has been answered.
func (s *Service) Run(ctx context.Context) error { return s.rpc.Run(ctx, s.admin.Run, s.work) }

// work is what answers come from. It ends after the last call.
func (s *Service) work(ctx context.Context) (err error) {
	g, following := errgroup.WithContext(ctx)
	if s.cfg.DataDir != "" {
		if s.files, err = checkpoint.Open(s.cfg.DataDir); err != nil {
			return fmt.Errorf("indexer: data dir: %w", err)
		}
		defer func() { err = errors.Join(err, s.files.Close()) }()
		defer s.saveAll(ctx)
		g.Go(func() error { return s.keep(following) })
	}
	g.Go(func() error {
		s.declarations.bucket.Run(following)
		return nil
	})
	g.Go(func() error { return s.discover(following, g) })
	g.Go(func() error { return s.tend(following) })
	return g.Wait()
}

// discoverLeast is the pause between looks for new logs while it is likely that
// there are some: a reflector that starts makes all of its logs at once.
const discoverLeast = 100 * time.Millisecond

// definitionsWait is how long the logs wait for what is declared.
const definitionsWait = 5 * time.Second

// discover starts a follower for every collection, now and whenever a new log
// appears, and keeps health and the known ends of the logs up to date.
func (s *Service) discover(ctx context.Context, g *errgroup.Group) error {
	// What is declared is read once, at ingest, if it is known before.
	select {
	case <-s.declarations.known:
	case <-ctx.Done():
	case <-time.After(definitionsWait):
	}
	all := followers{s: s, g: g, each: map[delta.Collection]*following{}}
	for _, c := range s.names.Load().all {
		all.begin(ctx, c)
	}
	pause, failing := discoverLeast, false
	for {
		var err error
		known := len(s.names.Load().all)
		if len(s.cfg.Collections) == 0 {
			err = s.findLogs(ctx, &all)
		}
		if n := len(s.names.Load().all); err == nil && (n == 0 || n > known) {
			pause = discoverLeast
		}
		if err == nil {
			s.discovered.Store(true)
		} else if !failing && ctx.Err() == nil {
			s.slog.Warn("cannot list logs", telemetry.Err(err))
		}
		failing = err != nil
		s.pins.expire(time.Now())
		s.lookAtTails(ctx)
		if err == nil && len(s.cfg.Collections) == 0 {
			all.forget(time.Now())
		}
		s.publishHealth(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(pause, s.cfg.DiscoverEvery)):
		}
		pause = min(2*pause, s.cfg.DiscoverEvery)
	}
}

func (s *Service) findLogs(ctx context.Context, all *followers) error {
	ctx2, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ids, err := s.log.Collections(ctx2)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if c := s.know(id); c != nil {
			s.slog.Info("following collection", slog.String(telemetry.KeyCollection, c.name))
			all.begin(ctx, c)
		}
	}
	return nil
}

// know adds a collection; nil if it is known already.
func (s *Service) know(id delta.Collection) *collection {
	s.naming.Lock()
	defer s.naming.Unlock()
	old := s.names.Load()
	for _, c := range old.all {
		if c.id == id {
			return nil
		}
	}
	c := s.newCollection(id)
	s.names.Store(old.with(c))
	c.declare() // also what has been declared since c was made
	return c
}

// redeclare tells the collections of a resource that what is declared for it
// has changed.
func (s *Service) redeclare(resource string) {
	for _, c := range s.names.Load().all {
		if c.id.ResourceName() == resource {
			c.declare()
		}
	}
}

// follow reads one log until ctx ends. One that fails is begun again where it
// was; the others go on. One that does not fit into memory is replaced.
func (s *Service) follow(ctx context.Context, c *collection) error {
	const least, most = 200 * time.Millisecond, 10 * time.Second
	pause := least
	s.restore(ctx, c)
	for ctx.Err() == nil {
		began := time.Now()
		from := stream.ReadConfig{From: c.follower.Position(), FromTime: c.fresh, Created: c.created, CatchUp: c.catchUp}
		if c.replaying { // only a replay from the start can be known to be complete
			from = stream.ReadConfig{}
		}
		in := feed{s: s, c: c}
		err := s.log.Read(ctx, c.id, from, in.batch)
		in.wait()
		if ctx.Err() != nil {
			return nil
		}
		if f, ok := errors.AsType[*fault](err); ok && errors.Is(err, errMemoryBudget) {
			c = s.evict(c, f)
			s.awaitRoom(ctx, c)
			continue
		}
		if time.Since(began) > most {
			pause = least
		}
		if err == nil {
			err = errors.New("log reader ended")
		}
		c.fail(err)
		s.slog.Warn("cannot follow log", slog.String(telemetry.KeyCollection, c.name), telemetry.Err(err), slog.Duration(telemetry.KeyAfter, pause))
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, most)
	}
	return nil
}

// lookAtTails learns where the logs end now, for the lag.
func (s *Service) lookAtTails(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, c := range s.names.Load().all {
		tail, err := s.log.Tail(ctx, c.id)
		c.absent.Store(errors.Is(err, stream.ErrNoLog))
		if err == nil {
			c.tail.Store(tail.Last)
			c.head.Store(tail.First)
			c.logBytes.Store(tail.Bytes)
		}
	}
}

// publishHealth tells whether this replica is as good as the log: the service
// is healthy when every log found has been read to its end once. Whether a
// collection is synced, and not lagging, is its own health, named by the service
// and it: one that lags must not take the others out of rotation.
func (s *Service) publishHealth(ctx context.Context) {
	service := indexv1.IndexService_ServiceDesc.ServiceName
	s.rpc.SetServing(service, s.checkReplayed(ctx) == nil)
	for _, c := range s.names.Load().all {
		s.rpc.SetPart(service+"/"+c.name, c.store.Snapshot().State().Synced && !c.lagging(c.now()))
	}
}

// Ready runs the checks of /readyz. It and gRPC health tell the same: a replica
// that has read the logs to their end once serves what it has while the log is
// away, as stale. Out of rotation nobody would be served, since the log is away
// for all replicas; so that, and files that cannot be written, are details.
func (s *Service) Ready(ctx context.Context) telemetry.Readiness { return s.admin.Readiness(ctx) }

func (s *Service) checkLog(context.Context) error {
	if !s.log.Healthy() {
		return errors.New("not connected to the log: what is served grows stale")
	}
	return nil
}

// checkFiles tells of checkpoints that cannot be written, as on a full disk.
func (s *Service) checkFiles(context.Context) error {
	n, name, err := s.unsaved()
	if n == 0 {
		return nil
	}
	return fmt.Errorf("the checkpoints of %d collections cannot be written, a restart reads their logs: %s: %w", n, name, err)
}

// unsaved counts the collections whose last checkpoint could not be written, and
// names the first.
func (s *Service) unsaved() (n int, name string, err error) {
	for _, c := range s.names.Load().all {
		why := c.unsaved.Load()
		if why == nil {
			continue
		}
		if n++; err == nil || c.name < name {
			name, err = c.name, *why
		}
	}
	return n, name, err
}

// checkReplayed latches: a collection that appears later is not served until it
// is synced, and must not take the others out of rotation.
func (s *Service) checkReplayed(context.Context) error {
	if s.ready.Load() {
		return nil
	}
	if !s.discovered.Load() {
		return errors.New("logs not listed yet")
	}
	for _, c := range s.names.Load().all {
		if !c.replayed.Load() && !c.absent.Load() && c.refused.Load() == nil {
			return fmt.Errorf("%s not replayed yet", c.name)
		}
	}
	s.ready.Store(true)
	return nil
}

// lag is how many log records are not applied yet, as last known. A log begins far above 1.
func (c *collection) lag(state store.State) uint64 {
	applied := max(state.Position.Sequence, max(c.head.Load(), 1)-1)
	return max(c.tail.Load(), applied) - applied
}
