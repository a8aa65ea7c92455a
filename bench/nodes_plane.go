package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"time"

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

// planeConfig is one part of a plane, in a child of its own.
type planeConfig struct {
	Part  string `json:"part"` // cluster, nats, queue, indexer, reflector or controllers
	Dir   string `json:"dir"`
	API   string `json:"api"`
	NATS  string `json:"nats"`
	Index string `json:"index"`
	Queue string `json:"queue"`

	// Kubeconfig of a real API server; none for a dev cluster.
	Kubeconfig string `json:"kubeconfig"`

	Nodes     int           `json:"nodes"`
	Zones     int           `json:"zones"` // of the nodes; 0 for one without a name
	Heartbeat time.Duration `json:"heartbeat"`
	Liveness  time.Duration `json:"liveness"` // 0 for the reflector's default

	Identity    string        `json:"identity"`
	Controllers []string      `json:"controllers"`
	Grace       time.Duration `json:"grace"`
	Rate        float64       `json:"rate"`
}

// planeServer is the servant for one part of a plane.
func planeServer(ctx context.Context, raw json.RawMessage) (*servant, error) {
	var cfg planeConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	start := map[string]func(context.Context, planeConfig) (*servant, error){
		"cluster": planeCluster, "nats": planeNATS, "queue": planeQueue,
		"indexer": planeIndexer, "reflector": planeReflector, "controllers": planeControllers,
	}[cfg.Part]
	if start == nil {
		return nil, fmt.Errorf("unknown part %q", cfg.Part)
	}
	return start(ctx, cfg)
}

// api is the way to the API server.
func (cfg planeConfig) api() (*kube.Client, error) {
	return kube.Load(kube.Config{URL: cfg.API, Kubeconfig: cfg.Kubeconfig})
}

func planeCluster(ctx context.Context, _ planeConfig) (*servant, error) {
	c, err := devcluster.New(devcluster.Config{Listen: "127.0.0.1:0", BookmarkEvery: time.Second}, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	stop := inBackground(ctx, c.Run)
	<-c.Ready()
	return &servant{info: c.URL(), stop: stop}, nil
}

func planeNATS(_ context.Context, cfg planeConfig) (*servant, error) {
	nats, err := embedded.StartNATS(embedded.NATSConfig{Dir: cfg.Dir, Listen: "127.0.0.1:0"})
	if err != nil {
		return nil, err
	}
	return &servant{info: nats.URL(), stop: func() error { nats.Stop(); return nil }}, nil
}

func planeQueue(ctx context.Context, cfg planeConfig) (*servant, error) {
	tel, err := planeTelemetry(ctx, "queue")
	if err != nil {
		return nil, err
	}
	s, err := queue.New(queue.Config{RPC: rpc.ServerConfig{Listen: "127.0.0.1:0"}, DataDir: cfg.Dir}, tel)
	if err != nil {
		return nil, err
	}
	stop := inBackground(ctx, s.Run)
	addr, err := s.Addr(ctx)
	return &servant{info: addr, stop: stop}, err
}

func planeIndexer(ctx context.Context, cfg planeConfig) (*servant, error) {
	tel, err := planeTelemetry(ctx, "indexer")
	if err != nil {
		return nil, err
	}
	conn, err := stream.Connect(ctx, stream.Config{URL: cfg.NATS})
	if err != nil {
		return nil, err
	}
	s, err := indexer.New(indexer.Config{RPC: rpc.ServerConfig{Listen: "127.0.0.1:0"}}, conn, tel)
	if err != nil {
		return nil, err
	}
	stop := inBackground(ctx, s.Run)
	addr, err := s.Addr(ctx)
	return &servant{info: addr, stop: closing(stop, conn)}, err
}

func planeReflector(ctx context.Context, cfg planeConfig) (*servant, error) {
	tel, err := planeTelemetry(ctx, "reflector")
	if err != nil {
		return nil, err
	}
	client, err := cfg.api()
	if err != nil {
		return nil, err
	}
	conn, err := stream.Connect(ctx, stream.Config{URL: cfg.NATS})
	if err != nil {
		return nil, err
	}
	s, err := reflector.New(reflector.Config{Resources: reflector.DefaultResources(), LivenessEvery: cfg.Liveness}, conn, client, tel)
	if err != nil {
		return nil, err
	}
	return &servant{stop: closing(inBackground(ctx, s.Run), conn)}, nil
}

func planeControllers(ctx context.Context, cfg planeConfig) (*servant, error) {
	tel, err := planeTelemetry(ctx, "controllers")
	if err != nil {
		return nil, err
	}
	client, err := cfg.api()
	if err != nil {
		return nil, err
	}
	conn, err := stream.Connect(ctx, stream.Config{URL: cfg.NATS})
	if err != nil {
		return nil, err
	}
	index, err := rpc.Dial(cfg.Index, rpc.DialConfig{})
	if err != nil {
		return nil, err
	}
	queues, err := rpc.Dial(cfg.Queue, rpc.DialConfig{})
	if err != nil {
		return nil, err
	}
	s, err := controllers.New(controllers.Config{
		Controllers: cfg.Controllers, Identity: cfg.Identity, Grace: 2 * time.Second,
		Nodes: nodelifecycle.Rules{Grace: cfg.Grace, StartupGrace: cfg.Grace, Rate: new(cfg.Rate), SlowRate: new(cfg.Rate)},
	}, controllers.Deps{Stream: conn, Kube: client, Index: index, Queue: queues, Telemetry: tel})
	if err != nil {
		return nil, err
	}
	stop := inBackground(ctx, s.Run)
	return &servant{
		ops: map[string]op{"ready": func(ctx context.Context, _ json.RawMessage) (any, error) { return s.Ready(ctx).Ready, nil }},
		stop: closing(func() error {
			err := stop()
			return errors.Join(err, index.Close(), queues.Close())
		}, conn),
	}, nil
}

func planeTelemetry(ctx context.Context, name string) (*telemetry.Telemetry, error) {
	return telemetry.Setup(ctx, telemetry.Config{Service: name, LogLevel: "error"})
}

// closing stops a service, then its connection to the log.
func closing(stop func() error, conn *stream.Conn) func() error {
	return func() error { defer conn.Close(); return stop() }
}

// A plane is an API server with nodes and all of Deltaplane beside it, each part in a
// process of its own: log and queue keep what they have on disk. The nodes' heartbeats
// come from the bench itself.
type plane struct {
	b       *bench
	cfg     planeConfig
	dir     string
	kube    *kube.Client
	nodes   *kubelets
	cluster *child // nil: a real one, which the caller stops
	parts   map[string]*child
	workers []*child // the controllers
}

// startPlane starts everything but controllers, beside a dev cluster unless cfg names another one.
func startPlane(ctx context.Context, b *bench, name string, cfg planeConfig) (p *plane, err error) {
	p = &plane{b: b, cfg: cfg, dir: filepath.Join(b.dir, name), parts: map[string]*child{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if cfg.Kubeconfig == "" {
		cfg.Part = "cluster"
		if p.cluster, err = b.spawn(ctx, "plane", place{}, cfg, &p.cfg.API); err != nil {
			return p, err
		}
	}
	if p.kube, err = p.cfg.api(); err != nil {
		return p, err
	}
	if cfg.Nodes == 0 { // the caller has its own
		return p, p.start(ctx)
	}
	if p.nodes, err = serve(ctx, p.kube, cfg.Nodes, cfg.Zones, cfg.Heartbeat); err != nil {
		return p, err
	}
	return p, p.start(ctx)
}

// start starts log, queue, indexer and reflector on what their folders hold.
func (p *plane) start(ctx context.Context) error {
	for _, s := range []struct {
		part string
		info *string
	}{{"nats", &p.cfg.NATS}, {"queue", &p.cfg.Queue}, {"indexer", &p.cfg.Index}, {"reflector", nil}} {
		cfg := p.cfg
		cfg.Part, cfg.Dir = s.part, filepath.Join(p.dir, s.part)
		var info any
		if s.info != nil {
			info = s.info
		}
		c, err := p.b.spawn(ctx, "plane", place{}, cfg, info)
		if err != nil {
			return err
		}
		p.parts[s.part] = c
	}
	return nil
}

// control starts replicas of controllers and waits until they are ready.
func (p *plane) control(ctx context.Context, replicas int, rate float64, names ...string) error {
	for i := range replicas {
		cfg := p.cfg
		cfg.Part, cfg.Controllers, cfg.Rate, cfg.Identity = "controllers", names, rate, "bench-"+strconv.Itoa(i)
		c, err := p.b.spawn(ctx, "plane", place{}, cfg, nil)
		if err != nil {
			return err
		}
		p.workers = append(p.workers, c)
	}
	return await(ctx, time.Minute, "the controllers are not ready", func() (bool, error) {
		for _, c := range p.workers {
			var ready bool
			if err := c.call("ready", nil, &ready); err != nil || !ready {
				return false, err
			}
		}
		return true, nil
	})
}

// await asks until it is answered with yes.
func await(ctx context.Context, most time.Duration, otherwise string, ask func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		if yes, err := ask(); err != nil || yes {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", otherwise, ctx.Err())
		case <-tick.C:
		}
	}
}

// silence stops or starts the heartbeats of nodes from and up to, one every so often.
func (p *plane) silence(from, to int, every time.Duration, stop bool) {
	for i := from; i < to; i++ {
		p.nodes.silence(i, stop)
		time.Sleep(every)
	}
}

// release stops the controllers.
func (p *plane) release() (err error) {
	for _, c := range p.workers {
		err = errors.Join(err, c.stop())
	}
	p.workers = nil
	return err
}

// kill ends every process but the cluster as if its machine had gone.
func (p *plane) kill() (err error) {
	for _, c := range p.workers {
		err = errors.Join(err, c.kill())
	}
	for _, c := range p.parts {
		err = errors.Join(err, c.kill())
	}
	p.workers, p.parts = nil, map[string]*child{}
	return err
}

func (p *plane) close() error {
	err := p.release()
	for _, name := range []string{"reflector", "indexer", "queue", "nats"} {
		if c := p.parts[name]; c != nil {
			err = errors.Join(err, c.stop())
		}
	}
	if p.nodes != nil {
		err = errors.Join(err, p.nodes.close())
	}
	if p.kube != nil {
		p.kube.Close()
	}
	if p.cluster != nil {
		err = errors.Join(err, p.cluster.stop())
	}
	return err
}
