package indexer

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
	"github.com/deltaplane/deltaplane/services/indexer/extract"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
)

// noLog is a log that nobody reads.
type noLog struct{ follow.Log }

func (noLog) TombstoneTTL() time.Duration { return time.Hour }

// serving is a server that is not run, whose collections are filled by hand.
func serving(t testing.TB, change func(*Config)) *server {
	t.Helper()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "indexer", LogOutput: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Admin: telemetry.AdminConfig{Listen: "off"}, RPC: rpc.ServerConfig{StreamWorkers: -1}}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg, noLog{}, tel)
	if err != nil {
		t.Fatal(err)
	}
	s.collections.Listed()
	return s.server
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
	x := extract.New(c.Plan())
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
