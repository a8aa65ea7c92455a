package indexer

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"

	"github.com/deltaplane/deltaplane/internal/authority"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer/consistency"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/grant"
	"github.com/deltaplane/deltaplane/services/indexer/limit"
	"github.com/deltaplane/deltaplane/services/indexer/read"
	"github.com/deltaplane/deltaplane/services/indexer/watch"
	"github.com/deltaplane/deltaplane/services/indexer/wire"
)

// Service is an indexer. Make it with New, run it once.
type Service struct {
	collections *follow.Collections
	reader      *read.Reader
	watches     *watch.Watches
	rpc         *rpc.Server
	admin       *telemetry.Admin
}

// New builds an indexer that follows log, usually a *stream.Conn, and reports
// through tel. It opens nothing. The error holds every fault of the
// configuration.
func New(cfg Config, log follow.Log, tel *telemetry.Telemetry) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if cfg.Replica == "" {
		cfg.Replica = rand.Text()[:10]
	}
	s := &Service{}
	limited, err := limit.NewCounter(tel.Registry)
	if err != nil {
		return nil, fmt.Errorf("indexer metrics: %w", err)
	}
	requests := &limit.Quota{
		Is: fault.ErrRequestMemory, Limited: limited, All: limit.Limit{Name: "max_request_bytes", Most: cfg.MaxRequestBytes},
		Each: limit.Limit{Name: "max_client_request_bytes", Most: cfg.MaxRequestBytes / 2},
	}
	if s.collections, err = follow.New(cfg.follow(), log, tel); err != nil {
		return nil, fmt.Errorf("indexer metrics: %w", err)
	}
	auth, err := authority.New(cfg.Access, cfg.RPC.Auth, tel.Log, tel.Registry)
	if err != nil {
		return nil, err
	}
	gate := grant.Gate{Authority: auth, Encryption: cfg.Encryption}
	s.rpc, err = rpc.NewServer(cfg.RPC, wire.ServerOptions(rpc.Options{
		Log: tel.Log, Registry: tel.Registry, Tracer: tel.Tracer, Authorizer: auth.Authorizer(),
	}))
	if err != nil {
		return nil, err
	}
	authority.Register(s.rpc.Aside(), auth)
	waits := &consistency.Waits{DefaultWait: cfg.DefaultWait, MaxWait: cfg.MaxWait, Stopping: s.rpc.Stopping()}
	if s.reader, err = read.New(cfg.read(), s.collections, waits, gate, tel.Registry); err != nil {
		return nil, fmt.Errorf("indexer metrics: %w", err)
	}
	if s.watches, err = watch.New(cfg.watch(), s.collections, waits, gate, requests, limited, tel.Registry); err != nil {
		return nil, fmt.Errorf("indexer metrics: %w", err)
	}
	if err := s.collections.Open(s.rpc, s.watches.Observe); err != nil {
		return nil, err
	}
	err = wire.Register(cfg.wire(), wire.Parts{
		Collections: s.collections, Reader: s.reader, Watches: s.watches, Waits: waits, Gate: gate, Requests: requests, Slog: tel.Log, Registry: tel.Registry,
	}, s.rpc)
	if err != nil {
		return nil, fmt.Errorf("indexer metrics: %w", err)
	}
	if s.admin, err = telemetry.NewAdmin(cfg.Admin, tel.Registry, tel.Log); err != nil {
		return nil, err
	}
	s.admin.OnRefusal(auth.RefusedPage)
	s.admin.Ready("serving", s.rpc.Ready)
	s.admin.Ready("authorization", telemetry.Degrades(s.rpc.CheckAuthorizer))
	s.admin.Ready("log", telemetry.Degrades(s.collections.CheckLog))
	s.admin.Ready("newer logs", telemetry.Degrades(s.collections.CheckNewer))
	s.admin.Ready("encryption keys", telemetry.Degrades(func(context.Context) error { return cfg.Encryption.Check() }))
	s.admin.Ready("checkpoints", telemetry.Degrades(s.collections.CheckFiles))
	s.admin.Ready("replayed", s.collections.CheckReplayed)
	return s, nil
}

// Addr is where the IndexService listens; it waits until Run has opened it.
func (s *Service) Addr(ctx context.Context) (string, error) { return s.rpc.Addr(ctx) }

// Run follows the logs and answers until ctx ends; then health turns
// NOT_SERVING, watches are instructed to go elsewhere, and it returns nil. The logs
// are followed until the last call has been answered.
func (s *Service) Run(ctx context.Context) error { return s.rpc.Run(ctx, s.admin.Run, s.work) }

// work is what answers come from. It ends after the last call.
func (s *Service) work(ctx context.Context) error {
	expiring, cancel := context.WithCancel(ctx)
	var expirer sync.WaitGroup
	expirer.Go(func() { s.reader.Expire(expiring) })
	defer expirer.Wait()
	defer cancel()
	return s.collections.Run(ctx)
}

// WatchMemory is about how many bytes the messages take at present that watches
// of all collections have not taken, beside the payloads in them: at most RingBytes
// for each collection.
func (s *Service) WatchMemory() int { return s.watches.Memory() }

// Ready runs the checks of /readyz. It and gRPC health tell the same: a replica
// that has read the logs to their end once serves what it has while the log is
// away, as stale. Out of rotation nobody would be served, since the log is away
// for all replicas; so that, and files that cannot be written, are details.
func (s *Service) Ready(ctx context.Context) telemetry.Readiness { return s.admin.Readiness(ctx) }
