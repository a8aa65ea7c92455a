package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// indexCalls measures what reads cost their server beside echoes, as calls that
// one core of the server could answer in a second. The echoes run in the process
// of the raw tier's indexer: the same heap, the same collector.
func indexCalls(ctx context.Context, b *bench) (err error) {
	r, err := newReadRig(ctx, b, "reads")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	raw, echoes, q := r.raw, r.echoes, r.questions
	turn := func(name string, server *child, c caller) side {
		return side{name, func(ctx context.Context, d time.Duration) (got map[string]float64, err error) {
			err = b.profiled(server, "index-"+name, func() error {
				got, err = cpuPerCall(ctx, server, d, readsInFlight, c)
				return err
			})
			return perCore(got), err
		}}
	}
	// What is compared has its turn beside each other.
	sides := []side{
		turn("get-pieces", raw.child, caller{echoes, echoGetPieces, q.gets}),
		turn("get-echo", raw.child, caller{echoes, echoGet, q.gets}),
		turn("get", raw.child, caller{raw.conns, indexv1.IndexService_Get_FullMethodName, q.gets}),
		turn("objects-near", raw.child, caller{echoes, echoObjectsNear, q.objects}),
		turn("objects-pieces", raw.child, caller{echoes, echoObjectsPieces, q.objects}),
		turn("objects-echo", raw.child, caller{echoes, echoObjects, q.objects}),
		turn("objects", raw.child, caller{raw.conns, indexv1.IndexService_ByIndex_FullMethodName, q.objects}),
		turn("keys-echo", raw.child, caller{echoes, echoByIndex, q.keys}),
		turn("keys", raw.child, caller{raw.conns, indexv1.IndexService_ByIndex_FullMethodName, q.keys}),
		turn("empty", raw.child, caller{echoes, echoEmpty, []*wire{encoded(&emptypb.Empty{})}}),
	}
	// What an indexer cannot do yet must not hide what it can.
	var missing error
	if err := queryOnce(ctx, raw.conns, q.keys[0]); err != nil {
		missing = fmt.Errorf("query stream: %w", err)
	} else {
		sides = append(sides, queryTurn(b, raw, q.keys))
	}
	compact, err := compactReplica(ctx, b, r.published)
	if err != nil {
		missing = errors.Join(missing, err)
	} else {
		defer func() { err = errors.Join(err, compact.close()) }()
		sides = append(sides,
			turn("compact-get", compact.child, caller{compact.conns, indexv1.IndexService_Get_FullMethodName, q.gets}),
			turn("compact-keys", compact.child, caller{compact.conns, indexv1.IndexService_ByIndex_FullMethodName, q.keys}),
			turn("compact-objects", compact.child, caller{compact.conns, indexv1.IndexService_ByIndex_FullMethodName, q.objects}),
		)
	}
	// Many short rounds: what disturbs the machine lasts longer than a turn, and
	// then the median of the rounds' ratios holds still.
	p := b.plan("reads", 3, 45, 170*time.Millisecond, 170*time.Millisecond)
	p.rotate = true
	t, err := interleave(ctx, b, p, sides...)
	if err != nil {
		return err
	}
	addCalls(b, t)
	err = errors.Join(missing, ghzCalls(ctx, b, raw, q), r.verify(ctx, raw))
	if compact != nil {
		err = errors.Join(err, r.verify(ctx, compact))
	}
	return err
}

// compactReplica starts an indexer of the compact tier and waits until it has
// compressed everything.
func compactReplica(ctx context.Context, b *bench, r *published) (*replica, error) {
	began := time.Now()
	x, err := r.replica(ctx, b, place{pinned: true}, indexer.TierCompact)
	if err != nil {
		return nil, err
	}
	if err = x.await(ctx, r.info.Objects); err == nil {
		_, _, err = x.compacted(ctx, began, pick(b, time.Second, 2*time.Second))
	}
	if err != nil {
		return nil, errors.Join(err, x.close())
	}
	return x, nil
}

// questions are the requests asked again and again.
type questions struct {
	get           *indexv1.GetRequest
	some          *indexv1.ByIndexRequest
	gets          []*wire
	keys, objects []*wire // ByIndex by node: keys only, and whole objects
}

func newQuestions(info sourceInfo) questions {
	q := questions{get: getRequest(info.Keys[0]), some: byIndexRequest(info.Values[0])}
	for _, key := range info.Keys {
		q.gets = append(q.gets, encoded(getRequest(key)))
	}
	for _, node := range info.Values {
		q.keys = append(q.keys, encoded(byIndexRequest(node)))
		q.objects = append(q.objects, encoded(objectsRequest(node)))
	}
	return q
}

func objectsRequest(node string) *indexv1.ByIndexRequest {
	r := byIndexRequest(node)
	r.View = indexv1.View_VIEW_FULL
	return r
}

// perCore adds to CPU per call what a core of the server could do in a second.
func perCore(got map[string]float64) map[string]float64 {
	if got != nil {
		got["core"] = 1e6 / got["cpu"]
	}
	return got
}

// addCalls adds the rows of reads and of the query stream.
func addCalls(b *bench, t table) {
	const unit = "calls/s per server core"
	row := func(name, side, besideName, beside string, limit *target) {
		if len(t.of(side, "core")) == 0 {
			return
		}
		f := compare(name, unit, t.of(side, "core"), besideName, t.of(beside, "core"), limit)
		f = f.with("server CPU", "us", t.of(side, "cpu")).with("beside", "us", t.of(beside, "cpu"))
		b.add(f.with("seen", "calls/s", t.of(side, "rate")).with("core busy", "", t.of(side, "busy")).with("allocations/call", "", t.of(side, "allocs")))
	}
	// What a client sees, whose own core is the limit when answers are long.
	seen := func(name, side, besideName, beside string, limit *target) {
		f := compare(name, "calls/s seen", t.of(side, "rate"), besideName, t.of(beside, "rate"), limit)
		b.add(f.with("core busy", "", t.of(side, "busy")).with("beside", "", t.of(beside, "busy")))
	}
	row("ByIndex, 30 hits, keys only, raw tier", "keys", "empty echo", "empty", atLeast("ratio", 0.6))
	row("ByIndex, 30 hits, keys only, raw tier", "keys", "echo of the same bytes", "keys-echo", nil)
	row("ByIndex, 30 x 5 KB, raw tier", "objects", "echo of the same bytes", "objects-echo", atLeast("ratio", 0.82))
	seen("ByIndex, 30 x 5 KB, raw tier", "objects", "echo of the same bytes", "objects-echo", atLeast("ratio", 0.82))
	row("Get, 5 KB, raw tier", "get", "echo of the same bytes", "get-echo", atLeast("ratio", 0.9))
	row("Query stream, ByIndex, 30 hits, keys only, raw tier", "stream", "empty unary echo", "empty", nil)
	row("Query stream, ByIndex, 30 hits, keys only, raw tier", "stream", "unary echo of the same bytes", "keys-echo", atLeast("ratio", 3))
	// What grpc-go takes for pieces instead of one buffer, with nobody looking for them.
	row("echo, 30 x 5 KB in pieces", "objects-pieces", "echo of the same bytes", "objects-echo", nil)
	row("echo, 30 x 5 KB in pieces of one buffer", "objects-near", "echo of the same bytes", "objects-echo", nil)
	row("ByIndex, 30 x 5 KB, raw tier", "objects", "echo of the same pieces", "objects-pieces", nil)
	row("echo, 5 KB in pieces", "get-pieces", "echo of the same bytes", "get-echo", nil)
	row("Get, 5 KB, raw tier", "get", "echo of the same pieces", "get-pieces", nil)
	row("ByIndex, 30 hits, keys only, compact tier", "compact-keys", "empty echo", "empty", nil)
	row("ByIndex, 30 x 5 KB, compact tier", "compact-objects", "echo of the same bytes", "objects-echo", nil)
	row("Get, 5 KB, compact tier", "compact-get", "echo of the same bytes", "get-echo", nil)
}

// ghzCalls shows what ghz reaches. Its own client is the limit: the ratio tells
// more than the rates.
func ghzCalls(ctx context.Context, b *bench, x *replica, q questions) error {
	path, err := findGHZ()
	if err != nil {
		b.leaveOut("ghz rows", "ghz is not installed: make tools")
		return nil
	}
	b.version(ctx, "ghz", path, "--version")
	service := indexv1.IndexService_ServiceDesc.ServiceName
	objects := objectsRequest(q.some.GetValues()[0])
	t, err := interleave(ctx, b, b.plan("ghz", 1, 3, 500*time.Millisecond, 3*time.Second),
		ghzTurn("health", path, x.addr, "grpc.health.v1.Health/Check", nil),
		ghzTurn("get", path, x.addr, service+"/Get", q.get),
		ghzTurn("keys", path, x.addr, service+"/ByIndex", q.some),
		ghzTurn("objects", path, x.addr, service+"/ByIndex", objects),
	)
	if err != nil {
		return fmt.Errorf("ghz: %w", err)
	}
	for _, row := range []struct{ side, name string }{
		{"get", "Get, 5 KB"}, {"keys", "ByIndex, 30 hits, keys only"}, {"objects", "ByIndex, 30 x 5 KB"},
	} {
		f := compare("ghz, "+row.name+", raw tier", "calls/s", t.of(row.side, "rate"), "Health/Check", t.of("health", "rate"), nil)
		b.add(f.with("p50", "ms", t.of(row.side, "p50")).with("p99", "ms", t.of(row.side, "p99")))
		noteCut(b, row.name, t.of(row.side, "cut"))
	}
	return nil
}
