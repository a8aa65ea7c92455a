package embedded

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// MaxPayload is the largest message the embedded NATS server takes: 8 MB, what
// the delta log needs.
const MaxPayload = 8 << 20

// NATSConfig describes an embedded NATS server with JetStream on disk.
type NATSConfig struct {
	// Dir is where streams are stored; it is created. It must be set.
	Dir string
	// Listen is a loopback host:port for other processes ("127.0.0.1:0" for a
	// free one). Empty: no socket, in-process connections only.
	Listen string
	// Name is the server's name. Default "deltaplane".
	Name string
	// MaxStore bounds what JetStream keeps on disk, in bytes. Default: what the
	// disk allows.
	MaxStore int64
	// SyncInterval is how often stored messages are forced to disk. Default
	// 2 min, NATS' own.
	SyncInterval time.Duration
	// ClusterListen is the loopback host:port where the other servers of a cluster
	// connect, and Cluster are the same of all its servers. Every server needs a
	// Name and a Dir of its own. JetStream answers once most of them are up.
	ClusterListen string
	Cluster       []string
	// Log receives the server's warnings and errors. Default: discarded.
	Log *slog.Logger
}

// NATS is a running embedded server.
type NATS struct {
	srv  *server.Server
	stop sync.Once
}

// StartNATS starts a server and waits until it takes connections, some 40 ms.
func StartNATS(cfg NATSConfig) (*NATS, error) {
	if cfg.Dir == "" {
		return nil, errors.New("embedded: nats needs a directory")
	}
	opts := &server.Options{
		ServerName: cmp.Or(cfg.Name, "deltaplane"),
		JetStream:  true, StoreDir: cfg.Dir, JetStreamMaxStore: cmp.Or(cfg.MaxStore, 0),
		MaxPayload: MaxPayload, MaxPending: 8 * MaxPayload,
		SyncInterval: cfg.SyncInterval,
		DontListen:   cfg.Listen == "", NoSigs: true,
	}
	if cfg.Listen != "" {
		addr, err := net.ResolveTCPAddr("tcp", cfg.Listen)
		if err != nil {
			return nil, fmt.Errorf("embedded: nats listen address %q: %w", cfg.Listen, err)
		}
		if addr.IP == nil || !addr.IP.IsLoopback() {
			return nil, fmt.Errorf("embedded: nats listen address %q is not loopback: run a nats-server of your own for that", cfg.Listen)
		}
		// The server itself would only say that it did not become ready.
		probe, err := net.ListenTCP("tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("embedded: nats: %w", err)
		}
		_ = probe.Close()
		opts.Host, opts.Port = addr.IP.String(), cmp.Or(addr.Port, server.RANDOM_PORT)
	}
	if cfg.ClusterListen != "" {
		addr, err := net.ResolveTCPAddr("tcp", cfg.ClusterListen)
		if err != nil {
			return nil, fmt.Errorf("embedded: nats cluster address %q: %w", cfg.ClusterListen, err)
		}
		if addr.IP == nil || !addr.IP.IsLoopback() {
			return nil, fmt.Errorf("embedded: nats cluster address %q is not loopback: run nats-servers of your own for that", cfg.ClusterListen)
		}
		opts.Cluster = server.ClusterOpts{Name: "deltaplane", Host: addr.IP.String(), Port: addr.Port}
		for _, peer := range cfg.Cluster {
			opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats", Host: peer})
		}
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("embedded: nats: %w", err)
	}
	log := natsLog{cfg.Log}
	if log.Logger == nil {
		log.Logger = slog.New(slog.DiscardHandler)
	}
	srv.SetLoggerV2(log, false, false, false)
	srv.Start()
	if !srv.ReadyForConnections(10 * time.Second) {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, fmt.Errorf("embedded: nats did not become ready (directory %q)", cfg.Dir)
	}
	if !srv.JetStreamEnabled() {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, fmt.Errorf("embedded: nats could not open its store in %q; another server may be using it", cfg.Dir)
	}
	return &NATS{srv: srv}, nil
}

// InProcess is the option that connects within the process: nats.Connect("", n.InProcess()).
func (n *NATS) InProcess() nats.Option { return nats.InProcessServer(n.srv) }

// URL is where other processes connect; empty when the server does not listen.
func (n *NATS) URL() string {
	if addr := n.srv.Addr(); addr != nil {
		return "nats://" + addr.String()
	}
	return ""
}

// Stop ends the server after its streams are on disk, and waits for it. It may
// be called again.
func (n *NATS) Stop() {
	n.stop.Do(func() {
		n.srv.Shutdown()
		n.srv.WaitForShutdown()
	})
}

// natsLog passes on what an operator would act on.
type natsLog struct{ *slog.Logger }

func (l natsLog) Noticef(format string, args ...any) { l.Debug("nats server", said(format, args)) }
func (l natsLog) Warnf(format string, args ...any)   { l.Warn("nats server", said(format, args)) }
func (l natsLog) Fatalf(format string, args ...any)  { l.Error("nats server", said(format, args)) }
func (l natsLog) Errorf(format string, args ...any)  { l.Error("nats server", said(format, args)) }
func (l natsLog) Debugf(string, ...any)              {}
func (l natsLog) Tracef(string, ...any)              {}

func said(format string, args []any) slog.Attr {
	return slog.String("reason", fmt.Sprintf(format, args...))
}
