package wire

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer/consistency"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/grant"
	"github.com/deltaplane/deltaplane/services/indexer/indexertest"
	"github.com/deltaplane/deltaplane/services/indexer/limit"
	"github.com/deltaplane/deltaplane/services/indexer/read"
	"github.com/deltaplane/deltaplane/services/indexer/watch"
)

// testConfig bounds requests and answers.
type testConfig struct{ MaxPageBytes, MaxResponseBytes, MaxRequestBytes int }

// serving is a server that is not run, whose collections are filled by hand.
func serving(t testing.TB, change func(*testConfig)) *server {
	t.Helper()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "indexer", LogOutput: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig{MaxPageBytes: 7 << 19, MaxResponseBytes: 32 << 20, MaxRequestBytes: 256 << 20}
	if change != nil {
		change(&cfg)
	}
	limited, err := limit.NewCounter(tel.Registry)
	if err != nil {
		t.Fatal(err)
	}
	requests := &limit.Quota{
		Is: fault.ErrRequestMemory, Limited: limited, All: limit.Limit{Name: "max_request_bytes", Most: cfg.MaxRequestBytes},
		Each: limit.Limit{Name: "max_client_request_bytes", Most: cfg.MaxRequestBytes / 2},
	}
	all, err := follow.New(follow.Config{
		DiscoverEvery: time.Second, RingChanges: 8192, RingBytes: 64 << 20, Fields: map[string][]string{"pods": {"spec.nodeName", "status.phase"}},
	}, indexertest.DeadLog{TTL: time.Hour}, tel)
	if err != nil {
		t.Fatal(err)
	}
	srv, err := rpc.NewServer(rpc.ServerConfig{StreamWorkers: -1}, ServerOptions(rpc.Options{Log: tel.Log, Registry: tel.Registry, Tracer: tel.Tracer}))
	if err != nil {
		t.Fatal(err)
	}
	waits := &consistency.Waits{DefaultWait: 3 * time.Second, MaxWait: 30 * time.Second, Stopping: srv.Stopping()}
	reader, err := read.New(read.Config{
		MaxPageBytes: cfg.MaxPageBytes, MaxResponseBytes: cfg.MaxResponseBytes, MaxSnapshots: 64, SnapshotTTL: time.Minute,
		SnapshotMaxAge: 15 * time.Minute, SnapshotBytes: 256 << 20, ExpireEvery: time.Second,
	}, all, waits, grant.Gate{}, tel.Registry)
	if err != nil {
		t.Fatal(err)
	}
	watches, err := watch.New(watch.Config{MaxWatchers: 10_000, MaxClientWatchers: 2500, MaxInitialStates: 16, RingBytes: 64 << 20}, all, waits, grant.Gate{}, requests, limited, tel.Registry)
	if err != nil {
		t.Fatal(err)
	}
	if err := all.Open(srv, watches.Observe); err != nil {
		t.Fatal(err)
	}
	s, err := newServer(Config{MaxQueryCalls: 1000, MaxIndexes: 64, StaleAfter: 15 * time.Second, Replica: "test"}, Parts{
		Collections: all, Reader: reader, Watches: watches, Waits: waits, Requests: requests, Slog: tel.Log, Registry: tel.Registry,
	}, srv)
	if err != nil {
		t.Fatal(err)
	}
	all.Listed()
	return s
}

// fill makes a synced collection of pods of a cluster.
func (s *server) fill(t testing.TB, cluster string, pods []podFacts) *follow.Collection {
	t.Helper()
	c := s.collections.Know(delta.Collection{Cluster: cluster, Version: "v1", Resource: "pods"})
	s.apply(t, c, pods)
	return c
}

// apply puts pods, and claims the state behind them.
func (s *server) apply(t testing.TB, c *follow.Collection, pods []podFacts) {
	t.Helper()
	at := c.Snapshot().State().Position.Sequence
	b := store.Batch{}
	var records []delta.Record
	for i := range pods {
		at++
		records = append(records, pods[i].record(at))
	}
	x := extract.New(c.Indexes.Plan())
	for i := range records {
		b.Ops = append(b.Ops, store.Op{Put: x.Object(t.Context(), &records[i])})
	}
	b.State = &store.State{
		Revision: delta.Revision{Epoch: 1, RV: fmt.Sprint(at)}, Position: delta.Position{Epoch: 1, Sequence: at}, Synced: true,
	}
	c.Store().Apply(b, time.Now())
}

// podFacts are what tests look for in a pod.
type podFacts struct {
	namespace, name, node, phase string
	labels                       map[string]string
	pad                          int
	unreadable                   bool
}

func (p *podFacts) key() string { return p.namespace + "/" + p.name }

func (p *podFacts) record(at uint64) delta.Record {
	var labels []string
	for name, value := range p.labels {
		labels = append(labels, fmt.Sprintf("%q:%q", name, value))
	}
	payload := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q,"uid":"%08x-0000-4000-8000-%012x","resourceVersion":"%d","labels":{%s}},"spec":{"nodeName":%q,"pad":%q},"status":{"phase":%q}}`,
		p.name, p.namespace, at, at, at, strings.Join(labels, ","), p.node, strings.Repeat("x", p.pad), p.phase)
	r := delta.Record{
		Kind: delta.KindDelta, Type: delta.Updated, Key: delta.Key(p.key()), UID: fmt.Sprintf("%08x-0000-4000-8000-%012x", at, at), RV: fmt.Sprint(at),
		Epoch: 1, Sequence: at, Payload: payload, Encoding: delta.EncodingJSON, Hash: delta.Hash(payload),
	}
	if p.unreadable {
		r.Encoding, r.Payload, r.Hash = delta.EncodingUnreadable, nil, 0
	}
	return r
}
