package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/internal/authority"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// ReplicaConfig is an indexer on a log in another process.
type ReplicaConfig struct {
	NATS       string       `json:"nats"`
	Collection string       `json:"collection"`
	Tier       indexer.Tier `json:"tier"`
	DataDir    string       `json:"data_dir"` // of the snapshot file; empty for none
	// Tokens and Policy are files that name and limit the callers, Token that of the caller; empty for
	// none.
	Tokens string `json:"tokens"`
	Policy string `json:"policy"`
	// Cluster is the URL of an API server that reviews tokens and decides; empty for none.
	Cluster string `json:"cluster"`
	Token   string `json:"token"`
}

// ReplicaServer is the servant that is one indexer, from when it is instructed to start.
func ReplicaServer(_ context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg ReplicaConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	s := &harness.Servant{}
	delay := &load.Delays{Metric: "deltaplane_indexer_stored_to_visible_seconds"}
	s.Ops = map[string]harness.Op{
		"start": func(ctx context.Context, _ json.RawMessage) (addr any, err error) {
			addr, s.Stop, delay.Registry, err = startReplica(ctx, cfg)
			return addr, err
		},
		"visible": func(context.Context, json.RawMessage) (any, error) { return delay.Since() },
		"echo": func(ctx context.Context, args json.RawMessage) (any, error) {
			var e EchoConfig
			if err := json.Unmarshal(args, &e); err != nil {
				return nil, err
			}
			return e.serve(ctx)
		},
	}
	return s, nil
}

func startReplica(ctx context.Context, cfg ReplicaConfig) (addr string, stop func() error, metrics prometheus.Gatherer, err error) {
	conn, err := stream.Connect(ctx, stream.Config{URL: cfg.NATS})
	if err != nil {
		return "", nil, nil, err
	}
	tel, err := telemetry.Setup(ctx, telemetry.Config{Service: "indexer", LogLevel: "error"})
	if err != nil {
		return "", nil, nil, err
	}
	c := indexer.Config{RPC: rpc.ServerConfig{TLS: load.ServerTLS()}, Collections: []string{cfg.Collection}, Tier: cfg.Tier, DataDir: cfg.DataDir}
	if c.RPC.Auth.TokenFile, c.Access.PolicyFile = cfg.Tokens, cfg.Policy; cfg.Policy != "" {
		c.Access.AuditFile = cfg.Policy + ".audit"
	}
	if cfg.Cluster != "" {
		api, err := kube.Load(kube.Config{URL: cfg.Cluster})
		if err != nil {
			return "", nil, nil, err
		}
		c.Access.Clusters, c.Access.AuditFile = []authority.Cluster{{Name: population.PodsCollection.Cluster, Kube: api}}, os.DevNull
	}
	s, err := indexer.New(c, conn, tel)
	if err != nil {
		return "", nil, nil, err
	}
	end := harness.InBackground(ctx, s.Run)
	addr, err = s.Addr(ctx)
	return addr, func() error { defer conn.Close(); return end() }, tel.Registry, err
}

// ErrNotThere says that the indexer measured cannot do yet what a figure is about.
var ErrNotThere = errors.New("this indexer cannot do that")

// Replica is the parent's side of an indexer in a child.
type Replica struct {
	*harness.Child
	Addr       string
	Conns      load.Pool
	Collection string

	token string // file of the caller's
}

// StartLog runs NATS in a child, with the log in a folder of its own.
func StartLog(ctx context.Context, b *harness.Bench, name string) (*harness.Child, string, error) {
	var url string
	c, err := b.Spawn(ctx, "pipeline", harness.Place{}, PipelineConfig{Part: "nats", Dir: filepath.Join(b.Dir, name)}, &url)
	return c, url, err
}

// SpawnReplica runs an indexer in a child and connects to it.
func SpawnReplica(ctx context.Context, b *harness.Bench, at harness.Place, cfg ReplicaConfig) (*Replica, error) {
	r, err := ReadyReplica(ctx, b, at, cfg)
	if err != nil {
		return nil, err
	}
	if err := r.start(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// ReadyReplica makes the child of an indexer, which is not started yet.
func ReadyReplica(ctx context.Context, b *harness.Bench, at harness.Place, cfg ReplicaConfig) (*Replica, error) {
	c, err := b.Spawn(ctx, "replica", at, cfg, nil)
	return &Replica{Child: c, Collection: cfg.Collection, token: cfg.Token}, err
}

// Sync starts the indexer and returns when it answers reads of n objects.
func (r *Replica) Sync(ctx context.Context, b *harness.Bench, name string, n int) error {
	return b.Profiled(r.Child, "sync-"+name, func() error {
		if err := r.start(); err != nil {
			return err
		}
		return r.Await(ctx, n)
	})
}

// start starts the service in the child.
func (r *Replica) start() error {
	if err := r.Call("start", nil, &r.Addr); err != nil {
		return err
	}
	var err error
	r.Conns, err = load.DialAs(r.Addr, 1, r.token)
	return err
}

// Close ends the indexer and waits for it.
func (r *Replica) Close() error { return errors.Join(r.Conns.Close(), r.Child.Stop()) }

// Await returns when the indexer answers reads of n objects. It asks on a connection whose calls
// are not retried behind its back, with pauses of up to half a second, while the indexer says that
// it is not synced.
func (r *Replica) Await(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	conn, err := rpc.Dial(r.Addr, rpc.DialConfig{TLS: load.ClientTLS(), TokenFile: r.token, Extra: []grpc.DialOption{grpc.WithDisableRetry()}})
	if err == nil {
		err = errors.Join(AwaitObjects(ctx, load.Pool{conn}, r.Collection, n), conn.Close())
	}
	if err != nil {
		return fmt.Errorf("the indexer does not serve %d objects: %w", n, err)
	}
	return nil
}

// Status is what the indexer tells about its collection.
func (r *Replica) Status(ctx context.Context) (*indexv1.CollectionStatus, error) {
	got, err := indexv1.NewIndexServiceClient(r.Conns[0]).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if err != nil {
		return nil, err
	}
	for _, c := range got.GetCollections() {
		if c.GetCollection() == r.Collection {
			return c, nil
		}
	}
	return nil, fmt.Errorf("the indexer does not follow %s", r.Collection)
}

// Declare declares the index of images and returns how long it took until it answers.
func (r *Replica) Declare(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	got, err := indexv1.NewIndexServiceClient(r.Conns[0]).AddIndexers(ctx, &indexv1.AddIndexersRequest{
		Collection: r.Collection, Wait: durationpb.New(time.Minute),
		Indexers: []*indexv1.IndexerDefinition{{Name: ImageIndex, Source: &indexv1.IndexerDefinition_Field{Field: imageField}}},
	})
	if status.Code(err) == codes.Unimplemented {
		return 0, fmt.Errorf("%w: AddIndexers", ErrNotThere)
	}
	if err != nil {
		return 0, err
	}
	if state := got.GetIndexers()[0].GetState(); state != indexv1.IndexerState_INDEXER_STATE_READY {
		return 0, fmt.Errorf("index %s is %v after %s", ImageIndex, state, time.Since(began))
	}
	return time.Since(began), nil
}

// HasIndexes checks that n indexes of the collection answer.
func (r *Replica) HasIndexes(ctx context.Context, n int) error {
	got, err := indexv1.NewIndexServiceClient(r.Conns[0]).ListIndexers(ctx, &indexv1.ListIndexersRequest{Collection: r.Collection})
	if err != nil {
		return err
	}
	ready := 0
	for _, x := range got.GetIndexers() {
		if s := x.GetState(); s == indexv1.IndexerState_INDEXER_STATE_READY || s == indexv1.IndexerState_INDEXER_STATE_UNSPECIFIED {
			ready++
		}
	}
	if ready != n || len(got.GetIndexers()) != n {
		return fmt.Errorf("%d of %d indexes answer, want %d: %v", ready, len(got.GetIndexers()), n, got.GetIndexers())
	}
	return nil
}

// Compacted returns when the payloads have been compressed, as long after began as
// they changed last: stored in less than a quarter, and nothing more for a while.
func (r *Replica) Compacted(ctx context.Context, began time.Time, quiet time.Duration) (time.Duration, *indexv1.CollectionStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	last, at := int64(-1), time.Now()
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		got, err := r.Status(ctx)
		if err != nil {
			return 0, nil, err
		}
		if got.GetTier() != indexv1.Tier_TIER_COMPACT {
			return 0, got, fmt.Errorf("%w: the tier is %v", ErrNotThere, got.GetTier())
		}
		if got.GetStoredBytes() != last {
			last, at = got.GetStoredBytes(), time.Now()
		}
		if time.Since(at) > quiet && last < got.GetBytes()/4 {
			tick.Stop()
			return at.Sub(began), got, nil
		}
		select {
		case <-ctx.Done():
			return 0, got, fmt.Errorf("%d of %d bytes stored, no end of compression: %w", last, got.GetBytes(), ctx.Err())
		case <-tick.C:
		}
	}
}
