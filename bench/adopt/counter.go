package adopt

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/plane"
	"github.com/deltaplane/deltaplane/internal/devcluster"
)

// counter is a dev cluster behind a proxy that counts lists and watches of ConfigMaps.
type counter struct {
	n          atomic.Int64
	url        string
	kubeconfig string // file
	cluster    *harness.Child
	server     *http.Server
}

func newCounter(ctx context.Context, b *harness.Bench) (*counter, error) {
	c := &counter{kubeconfig: b.PathIn("kubeconfig")}
	var address string
	var err error
	if c.cluster, err = b.Spawn(ctx, "plane", harness.Place{}, plane.PlaneConfig{Part: "cluster"}, &address); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, c.cluster.Stop())
	}
	behind, err := url.Parse(address)
	if err != nil {
		return nil, errors.Join(err, listener.Close(), c.cluster.Stop())
	}
	proxy := httputil.NewSingleHostReverseProxy(behind)
	proxy.FlushInterval = -1 // a watch's events pass at once
	c.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/configmaps") {
			c.n.Add(1)
		}
		proxy.ServeHTTP(w, r)
	})}
	go func() { _ = c.server.Serve(listener) }() // ends with close
	c.url = "http://" + listener.Addr().String()
	return c, os.WriteFile(c.kubeconfig, devcluster.Kubeconfig(c.url), 0o600)
}

func (c *counter) close() error {
	return errors.Join(c.server.Close(), c.cluster.Stop())
}
