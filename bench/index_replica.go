package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// replicaConfig is an indexer on a log in another process.
type replicaConfig struct {
	NATS       string       `json:"nats"`
	Collection string       `json:"collection"`
	Tier       indexer.Tier `json:"tier"`
	DataDir    string       `json:"data_dir"` // of the snapshot file; empty for none
}

// replicaServer is the servant that is one indexer, from when it is told to start.
func replicaServer(_ context.Context, raw json.RawMessage) (*servant, error) {
	var cfg replicaConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	s := &servant{}
	delay := &delays{metric: "deltaplane_indexer_stored_to_visible_seconds"}
	s.ops = map[string]op{
		"start": func(ctx context.Context, _ json.RawMessage) (addr any, err error) {
			addr, s.stop, delay.registry, err = startReplica(ctx, cfg)
			return addr, err
		},
		"visible": func(context.Context, json.RawMessage) (any, error) { return delay.since() },
		"echo": func(ctx context.Context, args json.RawMessage) (any, error) {
			var e echoConfig
			if err := json.Unmarshal(args, &e); err != nil {
				return nil, err
			}
			return e.serve(ctx)
		},
	}
	return s, nil
}

func startReplica(ctx context.Context, cfg replicaConfig) (addr string, stop func() error, metrics prometheus.Gatherer, err error) {
	conn, err := stream.Connect(ctx, stream.Config{URL: cfg.NATS})
	if err != nil {
		return "", nil, nil, err
	}
	tel, err := telemetry.Setup(ctx, telemetry.Config{Service: "indexer", LogLevel: "error"})
	if err != nil {
		return "", nil, nil, err
	}
	s, err := indexer.New(indexer.Config{Collections: []string{cfg.Collection}, Tier: cfg.Tier, DataDir: cfg.DataDir}, conn, tel)
	if err != nil {
		return "", nil, nil, err
	}
	end := inBackground(ctx, s.Run)
	addr, err = s.Addr(ctx)
	return addr, func() error { defer conn.Close(); return end() }, tel.Registry, err
}

// errNotThere says that the indexer measured cannot do yet what a figure is about.
var errNotThere = errors.New("this indexer cannot do that")

// replica is the parent's side of an indexer in a child.
type replica struct {
	*child
	addr       string
	conns      pool
	collection string
}

// startLog runs NATS in a child, with the log in a folder of its own.
func startLog(ctx context.Context, b *bench, name string) (*child, string, error) {
	var url string
	c, err := b.spawn(ctx, "pipeline", place{}, pipelineConfig{Part: "nats", Dir: filepath.Join(b.dir, name)}, &url)
	return c, url, err
}

// spawnReplica runs an indexer in a child and connects to it.
func spawnReplica(ctx context.Context, b *bench, at place, cfg replicaConfig) (*replica, error) {
	r, err := readyReplica(ctx, b, at, cfg)
	if err != nil {
		return nil, err
	}
	if err := r.start(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// readyReplica makes the child of an indexer, which is not started yet.
func readyReplica(ctx context.Context, b *bench, at place, cfg replicaConfig) (*replica, error) {
	c, err := b.spawn(ctx, "replica", at, cfg, nil)
	return &replica{child: c, collection: cfg.Collection}, err
}

// sync starts the indexer and returns when it answers reads of n objects.
func (r *replica) sync(ctx context.Context, b *bench, name string, n int) error {
	return b.profiled(r.child, "sync-"+name, func() error {
		if err := r.start(); err != nil {
			return err
		}
		return r.await(ctx, n)
	})
}

// start starts the service in the child.
func (r *replica) start() error {
	if err := r.call("start", nil, &r.addr); err != nil {
		return err
	}
	var err error
	r.conns, err = dial(r.addr, 1)
	return err
}

// close ends the indexer and waits for it.
func (r *replica) close() error { return errors.Join(r.conns.Close(), r.child.stop()) }

// await returns when the indexer answers reads of n objects. It asks on a connection whose calls are not
// retried behind its back, with pauses of up to half a second, while the indexer says that it is not synced.
func (r *replica) await(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	conn, err := rpc.Dial(r.addr, rpc.DialConfig{Extra: []grpc.DialOption{grpc.WithDisableRetry()}})
	if err == nil {
		err = errors.Join(awaitObjects(ctx, pool{conn}, r.collection, n), conn.Close())
	}
	if err != nil {
		return fmt.Errorf("the indexer does not serve %d objects: %w", n, err)
	}
	return nil
}

// status is what the indexer tells about its collection.
func (r *replica) status(ctx context.Context) (*indexv1.CollectionStatus, error) {
	got, err := indexv1.NewIndexServiceClient(r.conns[0]).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if err != nil {
		return nil, err
	}
	for _, c := range got.GetCollections() {
		if c.GetCollection() == r.collection {
			return c, nil
		}
	}
	return nil, fmt.Errorf("the indexer does not follow %s", r.collection)
}

// declare declares the index of images and returns how long it took until it answers.
func (r *replica) declare(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	got, err := indexv1.NewIndexServiceClient(r.conns[0]).AddIndexers(ctx, &indexv1.AddIndexersRequest{
		Collection: r.collection, Wait: durationpb.New(time.Minute),
		Indexers: []*indexv1.IndexerDefinition{{Name: imageIndex, Source: &indexv1.IndexerDefinition_Field{Field: imageField}}},
	})
	if status.Code(err) == codes.Unimplemented {
		return 0, fmt.Errorf("%w: AddIndexers", errNotThere)
	}
	if err != nil {
		return 0, err
	}
	if state := got.GetIndexers()[0].GetState(); state != indexv1.IndexerState_INDEXER_STATE_READY {
		return 0, fmt.Errorf("index %s is %v after %s", imageIndex, state, time.Since(began))
	}
	return time.Since(began), nil
}

// hasIndexes checks that n indexes of the collection answer.
func (r *replica) hasIndexes(ctx context.Context, n int) error {
	got, err := indexv1.NewIndexServiceClient(r.conns[0]).ListIndexers(ctx, &indexv1.ListIndexersRequest{Collection: r.collection})
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

// compacted returns when the payloads have been compressed, as long after began as
// they changed last: stored in less than a quarter, and nothing more for a while.
func (r *replica) compacted(ctx context.Context, began time.Time, quiet time.Duration) (time.Duration, *indexv1.CollectionStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	last, at := int64(-1), time.Now()
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		got, err := r.status(ctx)
		if err != nil {
			return 0, nil, err
		}
		if got.GetTier() != indexv1.Tier_TIER_COMPACT {
			return 0, got, fmt.Errorf("%w: the tier is %v", errNotThere, got.GetTier())
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
