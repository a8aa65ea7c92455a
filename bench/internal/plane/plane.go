package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/client/deltalog"
	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/controllers"
	"github.com/deltaplane/deltaplane/services/indexer"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// PlaneConfig is one part of a plane, in a child of its own.
type PlaneConfig struct {
	Part  string `json:"part"` // cluster, nats, queue, indexer, reflector, controllers, or all but the cluster
	Dir   string `json:"dir"`
	API   string `json:"api"`
	NATS  string `json:"nats"`
	Index string `json:"index"`
	Queue string `json:"queue"`

	Reflector string `json:"-"` // its address, to whom starts the plane
	// Kubeconfig of a real API server; none for a dev cluster.
	Kubeconfig string `json:"kubeconfig"`

	Nodes     int           `json:"nodes"`
	Zones     int           `json:"zones"` // of the nodes; 0 for one without a name
	Heartbeat time.Duration `json:"heartbeat"`
	Liveness  time.Duration `json:"liveness"` // 0 for the reflector's default
	Gather    time.Duration `json:"gather"`   // the reflector's

	Identity    string        `json:"identity"`
	Controllers []string      `json:"controllers"`
	Grace       time.Duration `json:"grace"`
	Rate        float64       `json:"rate"`

	OTLP       string  `json:"otlp"` // URL of a collector of traces; none when empty
	TraceRatio float64 `json:"trace_ratio"`

	within []stream.Option // how parts of one process connect to the log
}

// PlaneServer is the servant for one part of a plane.
func PlaneServer(ctx context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg PlaneConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	start := map[string]func(context.Context, PlaneConfig) (*harness.Servant, error){
		"cluster": planeCluster, "nats": planeNATS, "queue": planeQueue,
		"indexer": planeIndexer, "reflector": planeReflector, "controllers": planeControllers, "all": planeAll,
	}[cfg.Part]
	if start == nil {
		return nil, fmt.Errorf("unknown part %q", cfg.Part)
	}
	return start(ctx, cfg)
}

// Client is the way to the API server.
func (cfg PlaneConfig) Client() (*kube.Client, error) {
	return kube.Load(kube.Config{URL: cfg.API, Kubeconfig: cfg.Kubeconfig})
}

func planeCluster(ctx context.Context, _ PlaneConfig) (*harness.Servant, error) {
	c, err := devcluster.New(devcluster.Config{Listen: "127.0.0.1:0", BookmarkEvery: time.Second}, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	stop := harness.InBackground(ctx, c.Run)
	<-c.Ready()
	return &harness.Servant{Info: c.URL(), Stop: stop}, nil
}

func planeNATS(_ context.Context, cfg PlaneConfig) (*harness.Servant, error) {
	nats, err := embedded.StartNATS(embedded.NATSConfig{Dir: cfg.Dir, Listen: "127.0.0.1:0"})
	if err != nil {
		return nil, err
	}
	return &harness.Servant{Info: nats.URL(), Stop: func() error { nats.Stop(); return nil }}, nil
}

func planeQueue(ctx context.Context, cfg PlaneConfig) (*harness.Servant, error) {
	tel, err := cfg.telemetry(ctx, "queue")
	if err != nil {
		return nil, err
	}
	s, err := queue.New(queue.Config{RPC: rpc.ServerConfig{Listen: "127.0.0.1:0"}, DataDir: cfg.Dir}, tel)
	if err != nil {
		return nil, err
	}
	stop := harness.InBackground(ctx, s.Run)
	addr, err := s.Addr(ctx)
	return &harness.Servant{Info: addr, Stop: stop}, err
}

func planeIndexer(ctx context.Context, cfg PlaneConfig) (*harness.Servant, error) {
	tel, err := cfg.telemetry(ctx, "indexer")
	if err != nil {
		return nil, err
	}
	conn, err := stream.Connect(ctx, stream.Config{URL: cfg.NATS, Options: cfg.within})
	if err != nil {
		return nil, err
	}
	s, err := indexer.New(indexer.Config{RPC: rpc.ServerConfig{Listen: "127.0.0.1:0"}}, conn, tel)
	if err != nil {
		return nil, err
	}
	stop := harness.InBackground(ctx, s.Run)
	addr, err := s.Addr(ctx)
	return &harness.Servant{Info: addr, Stop: closing(stop, conn)}, err
}

func planeReflector(ctx context.Context, cfg PlaneConfig) (*harness.Servant, error) {
	tel, err := cfg.telemetry(ctx, "reflector")
	if err != nil {
		return nil, err
	}
	client, err := cfg.Client()
	if err != nil {
		return nil, err
	}
	conn, err := stream.Connect(ctx, stream.Config{URL: cfg.NATS, Options: cfg.within})
	if err != nil {
		return nil, err
	}
	s, err := reflector.New(reflector.Config{
		RPC: rpc.ServerConfig{Listen: "127.0.0.1:0"}, Resources: reflector.DefaultResources(), LivenessEvery: cfg.Liveness, Gather: cfg.Gather,
	}, conn, client, tel)
	if err != nil {
		return nil, err
	}
	stop := harness.InBackground(ctx, s.Run)
	addr, err := s.Addr(ctx)
	return &harness.Servant{Info: addr, Stop: closing(stop, conn)}, err
}

func planeControllers(ctx context.Context, cfg PlaneConfig) (*harness.Servant, error) {
	tel, err := cfg.telemetry(ctx, "controllers")
	if err != nil {
		return nil, err
	}
	client, err := cfg.Client()
	if err != nil {
		return nil, err
	}
	conn, err := deltalog.Connect(ctx, deltalog.Config{URL: cfg.NATS, Options: cfg.within})
	if err != nil {
		return nil, err
	}
	index, err := rpc.Dial(cfg.Index, rpc.DialConfig{Tracer: tel.Tracer})
	if err != nil {
		return nil, err
	}
	queues, err := rpc.Dial(cfg.Queue, rpc.DialConfig{Tracer: tel.Tracer})
	if err != nil {
		return nil, err
	}
	s, err := controllers.New(controllers.Config{
		Controllers: cfg.Controllers, Identity: cfg.Identity, Grace: 2 * time.Second,
		Nodes: nodelifecycle.Rules{Grace: cfg.Grace, StartupGrace: cfg.Grace, Rate: new(cfg.Rate), SlowRate: new(cfg.Rate)},
	}, controllers.Deps{Log: conn, Kube: client, Index: index, Queue: queues, Telemetry: tel})
	if err != nil {
		return nil, err
	}
	stop := harness.InBackground(ctx, s.Run)
	return &harness.Servant{
		Ops: map[string]harness.Op{"ready": func(ctx context.Context, _ json.RawMessage) (any, error) { return s.Ready(ctx).Ready, nil }},
		Stop: closing(func() error {
			err := stop()
			return errors.Join(err, index.Close(), queues.Close())
		}, conn),
	}, nil
}

// PlaneTelemetry is what a service of the plane logs and measures with.
func PlaneTelemetry(ctx context.Context, name string) (*telemetry.Telemetry, error) {
	return telemetry.Setup(ctx, telemetry.Config{Service: name, LogLevel: "error"})
}

// exportEvery is how often spans leave, in milliseconds: a turn is to hold what its own spans cost.
const exportEvery = "200"

// telemetry is that of one part, which sends traces where there is a collector.
func (cfg PlaneConfig) telemetry(ctx context.Context, name string) (*telemetry.Telemetry, error) {
	if cfg.OTLP == "" {
		return PlaneTelemetry(ctx, name)
	}
	if err := os.Setenv("OTEL_BSP_SCHEDULE_DELAY", exportEvery); err != nil {
		return nil, err
	}
	return telemetry.Setup(ctx, telemetry.Config{Service: name, LogLevel: "error", OTLPEndpoint: cfg.OTLP, TraceRatio: cfg.TraceRatio})
}

// closing stops a service, then its connection to the log.
func closing(stop func() error, conn interface{ Close() }) func() error {
	return func() error { defer conn.Close(); return stop() }
}

// A Plane is an API server with nodes and all of Deltaplane beside it, each part in a
// process of its own: log and queue keep what they have on disk. The nodes' heartbeats
// come from the bench itself.
type Plane struct {
	b       *harness.Bench
	Cfg     PlaneConfig
	dir     string
	Kube    *kube.Client
	Nodes   *Kubelets
	cluster *harness.Child // nil: a real one, which the caller stops
	Parts   map[string]*harness.Child
	Workers []*harness.Child // the controllers
}

// StartPlane starts everything but controllers, beside a dev cluster unless cfg names another one.
func StartPlane(ctx context.Context, b *harness.Bench, name string, cfg PlaneConfig) (p *Plane, err error) {
	p = &Plane{b: b, Cfg: cfg, dir: filepath.Join(b.Dir, name), Parts: map[string]*harness.Child{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if cfg.Kubeconfig == "" {
		cfg.Part = "cluster"
		if p.cluster, err = b.Spawn(ctx, "plane", harness.Place{}, cfg, &p.Cfg.API); err != nil {
			return p, err
		}
	}
	if p.Kube, err = p.Cfg.Client(); err != nil {
		return p, err
	}
	if cfg.Nodes == 0 { // the caller has its own
		return p, p.Start(ctx)
	}
	if p.Nodes, err = Serve(ctx, p.Kube, cfg.Nodes, cfg.Zones, cfg.Heartbeat); err != nil {
		return p, err
	}
	return p, p.Start(ctx)
}

// Start starts log, queue, indexer and reflector on what their folders hold.
func (p *Plane) Start(ctx context.Context) error {
	for _, s := range []struct {
		part string
		info *string
	}{{"nats", &p.Cfg.NATS}, {"queue", &p.Cfg.Queue}, {"indexer", &p.Cfg.Index}, {"reflector", &p.Cfg.Reflector}} {
		cfg := p.Cfg
		cfg.Part, cfg.Dir = s.part, filepath.Join(p.dir, s.part)
		c, err := p.b.Spawn(ctx, "plane", harness.Place{}, cfg, s.info)
		if err != nil {
			return err
		}
		p.Parts[s.part] = c
	}
	return nil
}

// Control starts replicas of controllers and waits until they are ready.
func (p *Plane) Control(ctx context.Context, replicas int, rate float64, names ...string) error {
	for i := range replicas {
		cfg := p.Cfg
		cfg.Part, cfg.Controllers, cfg.Rate, cfg.Identity = "controllers", names, rate, "bench-"+strconv.Itoa(i)
		c, err := p.b.Spawn(ctx, "plane", harness.Place{}, cfg, nil)
		if err != nil {
			return err
		}
		p.Workers = append(p.Workers, c)
	}
	return harness.Await(ctx, time.Minute, "the controllers are not ready", func() (bool, error) {
		for _, c := range p.Workers {
			var ready bool
			if err := c.Call("ready", nil, &ready); err != nil || !ready {
				return false, err
			}
		}
		return true, nil
	})
}

// Silence stops or starts the heartbeats of nodes from and up to, one every so often.
func (p *Plane) Silence(from, to int, every time.Duration, stop bool) {
	for i := from; i < to; i++ {
		p.Nodes.Silence(i, stop)
		time.Sleep(every)
	}
}

// Release stops the controllers.
func (p *Plane) Release() (err error) {
	for _, c := range p.Workers {
		err = errors.Join(err, c.Stop())
	}
	p.Workers = nil
	return err
}

// Kill ends every process but the cluster as if its machine had gone.
func (p *Plane) Kill() (err error) {
	for _, c := range p.Workers {
		err = errors.Join(err, c.Kill())
	}
	for _, c := range p.Parts {
		err = errors.Join(err, c.Kill())
	}
	p.Workers, p.Parts = nil, map[string]*harness.Child{}
	return err
}

// Close stops everything, the controllers first.
func (p *Plane) Close() error {
	err := p.Release()
	for _, name := range []string{"reflector", "indexer", "queue", "nats"} {
		if c := p.Parts[name]; c != nil {
			err = errors.Join(err, c.Stop())
		}
	}
	if p.Nodes != nil {
		err = errors.Join(err, p.Nodes.Close())
	}
	if p.Kube != nil {
		p.Kube.Close()
	}
	if p.cluster != nil {
		err = errors.Join(err, p.cluster.Stop())
	}
	return err
}
