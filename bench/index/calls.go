package index

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// indexCalls measures what reads cost their server beside echoes, as calls that
// one core of the server could answer in a second. The echoes run in the process
// of the raw tier's indexer: the same heap, the same collector.
func indexCalls(ctx context.Context, b *harness.Bench) (err error) {
	r, err := newReadRig(ctx, b, "reads")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	raw, echoes, q := r.raw, r.echoes, r.questions
	turn := func(name string, server *harness.Child, c load.Caller) harness.Side {
		return harness.Side{Name: name, Run: func(ctx context.Context, d time.Duration) (got map[string]float64, err error) {
			err = b.Profiled(server, "index-"+name, func() error {
				got, err = load.CPUPerCall(ctx, server, d, load.ReadsInFlight, c)
				return err
			})
			return perCore(got), err
		}}
	}
	// What is compared has its turn beside each other.
	sides := []harness.Side{
		turn("get-pieces", raw.Child, load.Caller{Pool: echoes, Method: load.EchoGetPieces, Requests: q.gets}),
		turn("get-echo", raw.Child, load.Caller{Pool: echoes, Method: load.EchoGet, Requests: q.gets}),
		turn("get", raw.Child, load.Caller{Pool: raw.Conns, Method: indexv1.IndexService_Get_FullMethodName, Requests: q.gets}),
		turn("objects-near", raw.Child, load.Caller{Pool: echoes, Method: load.EchoObjectsNear, Requests: q.objects}),
		turn("objects-pieces", raw.Child, load.Caller{Pool: echoes, Method: load.EchoObjectsPieces, Requests: q.objects}),
		turn("objects-echo", raw.Child, load.Caller{Pool: echoes, Method: load.EchoObjects, Requests: q.objects}),
		turn("objects", raw.Child, load.Caller{Pool: raw.Conns, Method: indexv1.IndexService_ByIndex_FullMethodName, Requests: q.objects}),
		turn("keys-echo", raw.Child, load.Caller{Pool: echoes, Method: load.EchoByIndex, Requests: q.keys}),
		turn("keys", raw.Child, load.Caller{Pool: raw.Conns, Method: indexv1.IndexService_ByIndex_FullMethodName, Requests: q.keys}),
		turn("empty", raw.Child, load.Caller{Pool: echoes, Method: load.EchoEmpty, Requests: []*load.Wire{system.Encoded(&emptypb.Empty{})}}),
	}
	// What an indexer cannot do yet must not hide what it can.
	var missing error
	if err := queryOnce(ctx, raw.Conns, q.keys[0]); err != nil {
		missing = fmt.Errorf("query stream: %w", err)
	} else {
		sides = append(sides, queryTurn(b, raw, q.keys))
	}
	compact, err := compactReplica(ctx, b, r.published)
	if err != nil {
		missing = errors.Join(missing, err)
	} else {
		defer func() { err = errors.Join(err, compact.Close()) }()
		sides = append(sides,
			turn("compact-get", compact.Child, load.Caller{Pool: compact.Conns, Method: indexv1.IndexService_Get_FullMethodName, Requests: q.gets}),
			turn("compact-keys", compact.Child, load.Caller{Pool: compact.Conns, Method: indexv1.IndexService_ByIndex_FullMethodName, Requests: q.keys}),
			turn("compact-objects", compact.Child, load.Caller{Pool: compact.Conns, Method: indexv1.IndexService_ByIndex_FullMethodName, Requests: q.objects}),
		)
	}
	// Many short rounds: what disturbs the machine lasts longer than a turn, and
	// then the median of the rounds' ratios holds still.
	p := b.Plan("reads", 3, 45, 170*time.Millisecond, 170*time.Millisecond)
	p.Rotate = true
	t, err := harness.Interleave(ctx, b, p, sides...)
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
func compactReplica(ctx context.Context, b *harness.Bench, r *published) (*system.Replica, error) {
	began := time.Now()
	x, err := r.replica(ctx, b, harness.Place{Pinned: true}, indexer.TierCompact)
	if err != nil {
		return nil, err
	}
	if err = x.Await(ctx, r.info.Objects); err == nil {
		_, _, err = x.Compacted(ctx, began, harness.Pick(b, time.Second, 2*time.Second))
	}
	if err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return x, nil
}

// questions are the requests asked again and again.
type questions struct {
	get           *indexv1.GetRequest
	some          *indexv1.ByIndexRequest
	gets          []*load.Wire
	keys, objects []*load.Wire // ByIndex by node: keys only, and whole objects
}

func newQuestions(info system.SourceInfo) questions {
	q := questions{get: system.GetRequest(info.Keys[0]), some: system.ByIndexRequest(info.Values[0])}
	for _, key := range info.Keys {
		q.gets = append(q.gets, system.Encoded(system.GetRequest(key)))
	}
	for _, node := range info.Values {
		q.keys = append(q.keys, system.Encoded(system.ByIndexRequest(node)))
		q.objects = append(q.objects, system.Encoded(system.ObjectsRequest(node)))
	}
	return q
}

// perCore adds to CPU per call what a core of the server could do in a second.
func perCore(got map[string]float64) map[string]float64 {
	if got != nil {
		got["core"] = 1e6 / got["cpu"]
	}
	return got
}

// addCalls adds the rows of reads and of the query stream.
func addCalls(b *harness.Bench, t harness.Table) {
	const unit = "calls/s per server core"
	row := func(name, side, besideName, beside string, limit *harness.Target) {
		if len(t.Of(side, "core")) == 0 {
			return
		}
		f := harness.Compare(name, unit, t.Of(side, "core"), besideName, t.Of(beside, "core"), limit)
		f = f.With("server CPU", "us", t.Of(side, "cpu")).With("beside", "us", t.Of(beside, "cpu"))
		b.Add(f.With("seen", "calls/s", t.Of(side, "rate")).With("core busy", "", t.Of(side, "busy")).With("allocations/call", "", t.Of(side, "allocs")))
	}
	// What a client sees, whose own core is the limit when answers are long.
	seen := func(name, side, besideName, beside string, limit *harness.Target) {
		f := harness.Compare(name, "calls/s seen", t.Of(side, "rate"), besideName, t.Of(beside, "rate"), limit)
		b.Add(f.With("core busy", "", t.Of(side, "busy")).With("beside", "", t.Of(beside, "busy")))
	}
	row("ByIndex, 30 hits, keys only, raw tier", "keys", "empty echo", "empty", harness.AtLeast("ratio", 0.6))
	row("ByIndex, 30 hits, keys only, raw tier", "keys", "echo of the same bytes", "keys-echo", nil)
	row("ByIndex, 30 x 5 KB, raw tier", "objects", "echo of the same bytes", "objects-echo", harness.AtLeast("ratio", 0.82))
	seen("ByIndex, 30 x 5 KB, raw tier", "objects", "echo of the same bytes", "objects-echo", harness.AtLeast("ratio", 0.82))
	row("Get, 5 KB, raw tier", "get", "echo of the same bytes", "get-echo", harness.AtLeast("ratio", 0.9))
	row("Query stream, ByIndex, 30 hits, keys only, raw tier", "stream", "empty unary echo", "empty", nil)
	row("Query stream, ByIndex, 30 hits, keys only, raw tier", "stream", "unary echo of the same bytes", "keys-echo", harness.AtLeast("ratio", 3))
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
func ghzCalls(ctx context.Context, b *harness.Bench, x *system.Replica, q questions) error {
	if b.TLS {
		b.LeaveOut("ghz rows", "ghz would not know the certificate")
		return nil
	}
	path, err := system.FindGHZ()
	if err != nil {
		b.LeaveOut("ghz rows", "ghz is not installed: make tools")
		return nil
	}
	b.Version(ctx, "ghz", path, "--version")
	service := indexv1.IndexService_ServiceDesc.ServiceName
	objects := system.ObjectsRequest(q.some.GetValues()[0])
	t, err := harness.Interleave(ctx, b, b.Plan("ghz", 1, 3, 500*time.Millisecond, 3*time.Second),
		system.GhzTurn("health", path, x.Addr, "grpc.health.v1.Health/Check", nil),
		system.GhzTurn("get", path, x.Addr, service+"/Get", q.get),
		system.GhzTurn("keys", path, x.Addr, service+"/ByIndex", q.some),
		system.GhzTurn("objects", path, x.Addr, service+"/ByIndex", objects),
	)
	if err != nil {
		return fmt.Errorf("ghz: %w", err)
	}
	for _, row := range []struct{ side, name string }{
		{"get", "Get, 5 KB"}, {"keys", "ByIndex, 30 hits, keys only"}, {"objects", "ByIndex, 30 x 5 KB"},
	} {
		f := harness.Compare("ghz, "+row.name+", raw tier", "calls/s", t.Of(row.side, "rate"), "Health/Check", t.Of("health", "rate"), nil)
		b.Add(f.With("p50", "ms", t.Of(row.side, "p50")).With("p99", "ms", t.Of(row.side, "p99")))
		system.NoteCut(b, row.name, t.Of(row.side, "cut"))
	}
	return nil
}
