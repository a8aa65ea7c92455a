package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// readsInFlight is how many reads are in flight at a time, as in the ceilings
// that were measured before.
const readsInFlight = 64

// indexReads measures what a read of the index costs its server beside an empty
// echo and beside an echo of the answer's size. The echoes run in the indexer's
// process: the same heap, the same collector.
func indexReads(ctx context.Context, b *bench) (err error) {
	cfg := indexServerConfig{Dir: filepath.Join(b.dir, "index"), Seed: b.seed, Pods: pick(b, 3000, 9990), Templates: pick(b, 500, 600)}
	var info indexServerInfo
	server, err := b.spawn(ctx, "index", place{pinned: true}, cfg, &info)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	b.note("index: %d pods of %d templates, seed %d, %d bytes each; Get answers %d bytes, ByIndex %d (30 keys); the population was readable %s after its first append; log: 1 replica, file storage, default sync",
		cfg.Pods, cfg.Templates, b.seed, info.PayloadMean, info.GetSize, info.ByIndexSize, info.Load.Round(time.Millisecond))
	index, err := dial(info.Index, 1)
	if err != nil {
		return err
	}
	defer index.Close()
	echoes, err := dial(info.Echo, 1)
	if err != nil {
		return err
	}
	defer echoes.Close()
	var gets, hits []*wire
	for _, key := range info.Keys {
		gets = append(gets, encoded(getRequest(key)))
	}
	for _, node := range info.Nodes {
		hits = append(hits, encoded(byIndexRequest(node)))
	}
	turn := func(name string, c caller) side {
		return side{name, func(ctx context.Context, d time.Duration) (got map[string]float64, err error) {
			err = b.profiled(server, "index-"+name, func() error {
				got, err = cpuPerCall(ctx, server, d, readsInFlight, c)
				return err
			})
			return got, err
		}}
	}
	t, err := interleave(ctx, b, b.plan("index", 3, 7, 500*time.Millisecond, 3*time.Second),
		turn("empty", caller{echoes, echoEmpty, []*wire{encoded(&emptypb.Empty{})}}),
		turn("get", caller{index, indexv1.IndexService_Get_FullMethodName, gets}),
		turn("get-echo", caller{echoes, echoGet, gets}),
		turn("byindex", caller{index, indexv1.IndexService_ByIndex_FullMethodName, hits}),
		turn("byindex-echo", caller{echoes, echoByIndex, hits}),
	)
	if err != nil {
		return err
	}
	for _, read := range []struct{ side, name string }{{"get", "IndexService.Get, 5 KB"}, {"byindex", "IndexService.ByIndex, 30 hits, keys only"}} {
		cpu := t.of(read.side, "cpu")
		f := compare(read.name+": server CPU per call", "us", cpu, "empty echo", t.of("empty", "cpu"), atMost("ratio", 1.8))
		f = f.with("calls/s", "", t.of(read.side, "rate")).with("echo's", "", t.of("empty", "rate"))
		b.add(f.with("server's core busy", "", t.of(read.side, "busy")).with("allocations/call", "", t.of(read.side, "allocs")))
		b.add(compare(read.name+": server CPU per call", "us", cpu, "echo of its size", t.of(read.side+"-echo", "cpu"), nil))
	}
	return errors.Join(ghzReads(ctx, b, info), ctx.Err())
}
