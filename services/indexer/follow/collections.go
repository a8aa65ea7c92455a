package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/seal"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer/checkpoint"
	"github.com/deltaplane/deltaplane/services/indexer/define"
)

// Log is what is read of the log; *stream.Conn has it.
type Log interface {
	Collections(ctx context.Context) ([]delta.Collection, error)
	Read(ctx context.Context, col delta.Collection, cfg stream.ReadConfig, h stream.Handler) error
	Tail(ctx context.Context, col delta.Collection) (stream.Tail, error)
	TombstoneTTL() time.Duration
	Away() error // nil while it is reached
	Bucket(ctx context.Context, name string, ttl time.Duration) (*stream.Bucket, error)
}

// health is where it is told what is served; *rpc.Server has it.
type health interface {
	SetServing(service string, serving bool)
	SetPart(name string, serving bool)
}

// Config says which logs are followed, and how; see indexer.Config.
type Config struct {
	Collections                []string
	DiscoverEvery, ForgetAfter time.Duration
	Fields                     map[string][]string
	DataDir                    string
	CheckpointEvery            time.Duration
	CheckpointRate             int
	RingChanges, RingBytes     int
	Tier                       Tier
	MemoryBudget               int
	Keys                       *seal.Keys       // of checkpoints; nil does not encrypt them
	Now                        func() time.Time // default time.Now
}

// Collections are what this process holds: one collection for each log that it follows.
type Collections struct {
	cfg          Config
	log          Log
	slog         *slog.Logger
	tracer       trace.Tracer
	metrics      *metrics
	health       health
	observe      func(*Collection) Observer
	declarations *define.Declarations

	files    *checkpoint.Dir // nil when none are kept
	unsaving atomic.Bool     // some cannot be written, which was logged

	naming     sync.Mutex // held to replace names
	names      atomic.Pointer[Names]
	discovered atomic.Bool
	ready      atomic.Bool // every log found at first has been replayed; stays
	reclaimed  reclaimed
}

// New returns none yet, to be opened.
func New(cfg Config, log Log, tel *telemetry.Telemetry) (*Collections, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Collections{cfg: cfg, log: log, slog: tel.Log, tracer: tel.Tracer.Tracer("deltaplane/indexer")}
	s.names.Store(&Names{})
	s.declarations = define.NewDeclarations(log, tel.Log, s.redeclare)
	var err error
	if s.metrics, err = newMetrics(tel.Registry); err != nil {
		return nil, err
	}
	return s, tel.Registry.Register(gauges{s})
}

// Open makes those known that the configuration names. Every collection gets the
// observer that observe returns for it.
func (s *Collections) Open(health health, observe func(*Collection) Observer) error {
	s.health, s.observe = health, observe
	for _, name := range s.cfg.Collections {
		id, err := delta.ParseCollection(name)
		if err != nil {
			return err
		}
		s.Know(id)
	}
	return nil
}

// Names are the collections that are known at present.
func (s *Collections) Names() *Names { return s.names.Load() }

// Discovered reports whether the logs have been listed: what is not known then is not there.
func (s *Collections) Discovered() bool { return s.discovered.Load() }

// Declarations are the indexes that callers have declared.
func (s *Collections) Declarations() *define.Declarations { return s.declarations }

// Run follows the logs until ctx ends.
func (s *Collections) Run(ctx context.Context) (err error) {
	g, following := errgroup.WithContext(ctx)
	if s.cfg.DataDir != "" {
		if s.files, err = checkpoint.Open(s.cfg.DataDir, s.cfg.Keys); err != nil {
			return fmt.Errorf("indexer: data dir: %w", err)
		}
		defer func() { err = errors.Join(err, s.files.Close()) }()
		defer s.saveAll(ctx)
		g.Go(func() error { return s.keep(following) })
	}
	g.Go(func() error {
		s.declarations.Run(following)
		return nil
	})
	g.Go(func() error { return s.discover(following, g) })
	g.Go(func() error { return s.tend(following) })
	return g.Wait()
}
