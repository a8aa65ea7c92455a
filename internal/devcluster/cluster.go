package devcluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// api is the server behind the handlers: the store, the kinds, and the settings.
type api struct {
	cfg      Config
	log      *slog.Logger
	store    *store
	registry *registry
	stopping chan struct{} // closed when watches must end
	dirty    *dirtySet     // what the collector looks at next
}

// warn reports a failed write of one of the cluster's own parts, which tries again.
func (a *api) warn(part string, err error, key string) {
	a.log.Warn("dev cluster could not write", slog.String("part", part), slog.String("key", key), slog.Any("error", err))
}

// Cluster is a dev cluster. Its methods are safe for concurrent use.
type Cluster struct {
	api   *api
	ready chan struct{}
	once  sync.Once // closes stopping
	url   string    // set before ready is closed
}

// New makes a cluster and loads what Config.DataDir holds. Nothing runs and nothing
// listens before Run; Handler already answers.
func New(cfg Config, log *slog.Logger) (*Cluster, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("dev cluster config: %w", err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	a := &api{
		cfg: cfg, log: log,
		store: newStore(cfg.HistoryEvents, cfg.HistoryAge), registry: newRegistry(builtins(*cfg.DefaultTolerations)),
		stopping: make(chan struct{}), dirty: newDirtySet(),
	}
	for _, r := range a.registry.all() {
		a.store.ensure(r)
	}
	if cfg.DataDir != "" {
		if err := a.replay(cfg.DataDir); err != nil {
			return nil, fmt.Errorf("dev cluster data: %w", err)
		}
	}
	a.store.changed = a.noteChange
	if err := a.bootstrap(); err != nil {
		return nil, errors.Join(fmt.Errorf("dev cluster: %w", err), a.store.wal.close())
	}
	return &Cluster{api: a, ready: make(chan struct{})}, nil
}

// Run serves the API and runs the binder and the collector until ctx ends;
// it returns nil on such a stop. It may be called once.
func (c *Cluster) Run(ctx context.Context) error {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.api.cfg.Listen)
	if err != nil {
		return errors.Join(fmt.Errorf("dev cluster: %w", err), c.api.store.wal.close())
	}
	c.url = "http://" + lis.Addr().String()
	srv := &http.Server{Handler: c.api, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(c.api.log.Handler(), slog.LevelDebug)}
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := srv.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("dev cluster: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-gctx.Done()
		c.endWatches()
		stop, cancel := context.WithTimeout(context.WithoutCancel(gctx), 2*time.Second)
		defer cancel()
		if err := srv.Shutdown(stop); err != nil {
			return srv.Close()
		}
		return nil
	})
	group.Go(func() error { return c.loops(gctx) })
	c.api.log.LogAttrs(ctx, slog.LevelInfo, "dev cluster listens", slog.String("url", c.url))
	close(c.ready)
	err = group.Wait()
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, c.api.store.wal.close())
}

// loops runs everything but the listener.
func (c *Cluster) loops(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if !c.api.cfg.NoCollector {
		group.Go(func() error { return c.api.collect(ctx) })
	}
	if !c.api.cfg.NoBinder {
		group.Go(func() error { return c.api.bindPods(ctx) })
	}
	return group.Wait()
}

func (c *Cluster) endWatches() { c.once.Do(func() { close(c.api.stopping) }) }

// Handler answers the API without listening. Binder and collector work only while
// Run does.
func (c *Cluster) Handler() http.Handler { return c.api }

// Ready is closed when the API listens; it stays open if Run fails before.
func (c *Cluster) Ready() <-chan struct{} { return c.ready }

// URL is the address of the API; empty before Ready.
func (c *Cluster) URL() string {
	select {
	case <-c.ready:
		return c.url
	default:
		return ""
	}
}

// Kubeconfig is a kubeconfig file whose only context is this cluster; valid after Ready.
func (c *Cluster) Kubeconfig() []byte { return Kubeconfig(c.URL()) }

// Kubeconfig is a kubeconfig file for a dev cluster listening at url.
func Kubeconfig(url string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: dev
  cluster:
    server: %s
users:
- name: dev
  user: {}
contexts:
- name: dev
  context:
    cluster: dev
    user: dev
    namespace: default
current-context: dev
`, url)
}

// ResourceVersion is the version of the newest change.
func (c *Cluster) ResourceVersion() uint64 { return c.api.store.version() }

// Compact forgets the history of every resource, so that watches and page tokens
// from before answer 410 Expired. Watches that are up to date go on.
func (c *Cluster) Compact() { c.api.store.compact() }

// InjectWatchLine sends a line verbatim to every watcher of a resource ("pods",
// "jobs.batch") as if it were an event, at a resource version of its own. It
// reports whether the resource is served. Meant for tests of bad input.
func (c *Cluster) InjectWatchLine(resource string, line []byte) bool {
	r := c.api.registry.get(resource)
	if r == nil {
		return false
	}
	c.api.store.inject(r, line)
	return true
}
