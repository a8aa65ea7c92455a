package devcluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/devcluster/control"
	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
	"github.com/deltaplane/deltaplane/internal/devcluster/read"
	"github.com/deltaplane/deltaplane/internal/devcluster/serve"
	"github.com/deltaplane/deltaplane/internal/devcluster/store"
	"github.com/deltaplane/deltaplane/internal/devcluster/write"
)

// Cluster is a dev cluster. Its methods are safe for concurrent use.
type Cluster struct {
	cfg       Config
	log       *slog.Logger
	store     *store.Store
	kinds     *kinds.Registry
	server    *serve.Server
	binder    *control.Binder
	collector *control.Collector

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
	kinds, dirty := kinds.NewRegistry(kinds.Builtins(*cfg.DefaultTolerations)), control.NewDirtySet()
	objects := store.New(cfg.HistoryEvents, cfg.HistoryAge, dirty.Note)
	for _, r := range kinds.All() {
		objects.Ensure(r)
	}
	if cfg.DataDir != "" {
		if err := objects.Replay(kinds, cfg.DataDir); err != nil {
			return nil, fmt.Errorf("dev cluster data: %w", err)
		}
	}
	w := write.New(objects, kinds)
	if err := w.Bootstrap(); err != nil {
		return nil, errors.Join(fmt.Errorf("dev cluster: %w", err), objects.Close())
	}
	c := &Cluster{cfg: cfg, log: log, store: objects, kinds: kinds, ready: make(chan struct{}), stopping: make(chan struct{})}
	c.server = serve.New(serve.Settings{
		BookmarkEvery: cfg.BookmarkEvery, WatchTimeout: cfg.WatchTimeout, Forbidden: cfg.Forbidden, Fault: cfg.Fault,
	}, log, objects, kinds, read.New(objects, cfg.FreshTimeout), w, c.stopping)
	c.binder = control.NewBinder(objects, kinds, w, log)
	c.collector = control.NewCollector(objects, kinds, w, log, cfg.EventTTL, dirty)
	return c, nil
}

// Run serves the API and runs the binder and the collector until ctx ends;
// it returns nil on such a stop. It may be called once.
func (c *Cluster) Run(ctx context.Context) error {
	var secure *tls.Config
	scheme := "http://"
	if c.cfg.TLS.CertFile != "" {
		var err error
		if secure, err = certs.Server(c.cfg.TLS, false, "h2", "http/1.1"); err != nil {
			return errors.Join(fmt.Errorf("dev cluster: %w", err), c.store.Close())
		}
		scheme = "https://"
	}
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.cfg.Listen)
	if err != nil {
		return errors.Join(fmt.Errorf("dev cluster: %w", err), c.store.Close())
	}
	c.url = scheme + lis.Addr().String()
	srv := &http.Server{TLSConfig: secure, Handler: c.server, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(c.log.Handler(), slog.LevelDebug)}
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		serve := srv.Serve
		if secure != nil {
			serve = func(l net.Listener) error { return srv.ServeTLS(l, "", "") }
		}
		if err := serve(lis); !errors.Is(err, http.ErrServerClosed) {
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
	return errors.Join(err, c.store.Close())
}

// loops runs everything but the listener.
func (c *Cluster) loops(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if !c.cfg.NoCollector {
		group.Go(func() error { return c.collector.Run(ctx) })
	}
	if !c.cfg.NoBinder {
		group.Go(func() error { return c.binder.Run(ctx) })
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
func (c *Cluster) ResourceVersion() uint64 { return c.store.Version() }

// Compact forgets the history of every resource, so that watches and page tokens
// from before answer 410 Expired. Watches that are up to date go on.
func (c *Cluster) Compact() { c.store.Compact() }

// InjectWatchLine sends a line verbatim to every watcher of a resource ("pods",
// "jobs.batch") as if it were an event, at a resource version of its own. It
// reports whether the resource is served. Meant for tests of bad input.
func (c *Cluster) InjectWatchLine(resource string, line []byte) bool {
	r := c.kinds.Get(resource)
	if r == nil {
		return false
	}
	c.store.Inject(r, line)
	return true
}
