package slice

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// indexReads measures what a read of the index costs its server beside an empty
// echo and beside an echo of the answer's size. The echoes run in the indexer's
// process: the same heap, the same collector.
func indexReads(ctx context.Context, b *harness.Bench) (err error) {
	cfg := system.IndexServerConfig{Dir: filepath.Join(b.Dir, "index"), Seed: b.Seed, Pods: harness.Pick(b, 3000, 9990), Templates: harness.Pick(b, 500, 600)}
	var info system.IndexServerInfo
	server, err := b.Spawn(ctx, "index", harness.Place{Pinned: true}, cfg, &info)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	b.Note("index: %d pods of %d templates, seed %d, %d bytes each; Get answers %d bytes, ByIndex %d (30 keys); the population was readable %s after its first append; log: 1 replica, file storage, default sync",
		cfg.Pods, cfg.Templates, b.Seed, info.PayloadMean, info.GetSize, info.ByIndexSize, info.Load.Round(time.Millisecond))
	index, err := load.Dial(info.Index, 1)
	if err != nil {
		return err
	}
	defer index.Close()
	echoes, err := load.Dial(info.Echo, 1)
	if err != nil {
		return err
	}
	defer echoes.Close()
	var gets, hits []*load.Wire
	for _, key := range info.Keys {
		gets = append(gets, system.Encoded(system.GetRequest(key)))
	}
	for _, node := range info.Nodes {
		hits = append(hits, system.Encoded(system.ByIndexRequest(node)))
	}
	turn := func(name string, c load.Caller) harness.Side {
		return harness.Side{Name: name, Run: func(ctx context.Context, d time.Duration) (got map[string]float64, err error) {
			err = b.Profiled(server, "index-"+name, func() error {
				got, err = load.CPUPerCall(ctx, server, d, load.ReadsInFlight, c)
				return err
			})
			return got, err
		}}
	}
	t, err := harness.Interleave(ctx, b, b.Plan("index", 3, 7, 500*time.Millisecond, 3*time.Second),
		turn("empty", load.Caller{Pool: echoes, Method: load.EchoEmpty, Requests: []*load.Wire{system.Encoded(&emptypb.Empty{})}}),
		turn("get", load.Caller{Pool: index, Method: indexv1.IndexService_Get_FullMethodName, Requests: gets}),
		turn("get-echo", load.Caller{Pool: echoes, Method: load.EchoGet, Requests: gets}),
		turn("byindex", load.Caller{Pool: index, Method: indexv1.IndexService_ByIndex_FullMethodName, Requests: hits}),
		turn("byindex-echo", load.Caller{Pool: echoes, Method: load.EchoByIndex, Requests: hits}),
	)
	if err != nil {
		return err
	}
	for _, read := range []struct{ side, name string }{{"get", "IndexService.Get, 5 KB"}, {"byindex", "IndexService.ByIndex, 30 hits, keys only"}} {
		cpu := t.Of(read.side, "cpu")
		f := harness.Compare(read.name+": server CPU per call", "us", cpu, "empty echo", t.Of("empty", "cpu"), harness.AtMost("ratio", 1.8))
		f = f.With("calls/s", "", t.Of(read.side, "rate")).With("echo's", "", t.Of("empty", "rate"))
		b.Add(f.With("server's core busy", "", t.Of(read.side, "busy")).With("allocations/call", "", t.Of(read.side, "allocs")))
		b.Add(harness.Compare(read.name+": server CPU per call", "us", cpu, "echo of its size", t.Of(read.side+"-echo", "cpu"), nil))
	}
	return errors.Join(system.GhzReads(ctx, b, info), ctx.Err())
}
