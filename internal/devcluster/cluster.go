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

// Cluster is a dev cluster. Its methods are safe for concurrent use.
type Cluster struct {
	cfg       Config
	log       *slog.Logger
	store     *store
	kinds     *registry
	server    *server
	binder    *binder
	collector *collector

	ready    chan struct{}
	stopping chan struct{} // closed when watches must end
	once     sync.Once     // closes stopping
	url      string        // set before ready is closed
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
	kinds, dirty := newRegistry(builtins(*cfg.DefaultTolerations)), newDirtySet()
	objects := newStore(cfg.HistoryEvents, cfg.HistoryAge, dirty.note)
	for _, r := range kinds.all() {
		objects.ensure(r)
	}
	if cfg.DataDir != "" {
		if err := objects.replay(kinds, cfg.DataDir); err != nil {
			return nil, fmt.Errorf("dev cluster data: %w", err)
		}
	}
	w := newWriter(objects, kinds)
	if err := w.bootstrap(); err != nil {
		return nil, errors.Join(fmt.Errorf("dev cluster: %w", err), objects.close())
	}
	c := &Cluster{cfg: cfg, log: log, store: objects, kinds: kinds, ready: make(chan struct{}), stopping: make(chan struct{})}
	c.server = newServer(settings{
		bookmarkEvery: cfg.BookmarkEvery, watchTimeout: cfg.WatchTimeout, forbidden: cfg.Forbidden, fault: cfg.Fault,
	}, log, objects, kinds, newReader(objects, cfg.FreshTimeout), w, c.stopping)
	c.binder = newBinder(objects, kinds, w, log)
	c.collector = newCollector(objects, kinds, w, log, cfg.EventTTL, dirty)
	return c, nil
}

// Run serves the API and runs the binder and the collector until ctx ends;
// it returns nil on such a stop. It may be called once.
func (c *Cluster) Run(ctx context.Context) error {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.cfg.Listen)
	if err != nil {
		return errors.Join(fmt.Errorf("dev cluster: %w", err), c.store.close())
	}
	c.url = "http://" + lis.Addr().String()
	srv := &http.Server{Handler: c.server, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(c.log.Handler(), slog.LevelDebug)}
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
	c.log.LogAttrs(ctx, slog.LevelInfo, "dev cluster listens", slog.String("url", c.url))
	close(c.ready)
	err = group.Wait()
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, c.store.close())
}

// loops runs everything but the listener.
func (c *Cluster) loops(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if !c.cfg.NoCollector {
		group.Go(func() error { return c.collector.run(ctx) })
	}
	if !c.cfg.NoBinder {
		group.Go(func() error { return c.binder.run(ctx) })
	}
	return group.Wait()
}

func (c *Cluster) endWatches() { c.once.Do(func() { close(c.stopping) }) }

// Handler answers the API without listening. Binder and collector work only while
// Run does.
func (c *Cluster) Handler() http.Handler { return c.server }

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
func (c *Cluster) ResourceVersion() uint64 { return c.store.version() }

// Compact forgets the history of every resource, so that watches and page tokens
// from before answer 410 Expired. Watches that are up to date go on.
func (c *Cluster) Compact() { c.store.compact() }

// InjectWatchLine sends a line verbatim to every watcher of a resource ("pods",
// "jobs.batch") as if it were an event, at a resource version of its own. It
// reports whether the resource is served. Meant for tests of bad input.
func (c *Cluster) InjectWatchLine(resource string, line []byte) bool {
	r := c.kinds.get(resource)
	if r == nil {
		return false
	}
	c.store.inject(r, line)
	return true
}
