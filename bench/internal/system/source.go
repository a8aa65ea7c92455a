package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// SourceConfig says what a source publishes, and where.
type SourceConfig struct {
	NATS      string `json:"nats"`
	Seed      uint64 `json:"seed"`
	Objects   int    `json:"objects"`
	Templates int    `json:"templates"` // of pods; 0 publishes small objects instead
	Lists     string `json:"lists"`     // file to which full pods are written as an API server sends them; empty for none
	Keep      int    `json:"keep"`      // pods to keep for changes
	Managed   bool   `json:"managed"`   // pods are published with managed fields
}

// SourceInfo is what a source has published.
type SourceInfo struct {
	Hash        string        `json:"hash"`     // state hash: keys, versions and payloads
	Versions    string        `json:"versions"` // hash of keys and versions
	Objects     int           `json:"objects"`
	PayloadMean int           `json:"payload_mean"`
	FullMean    int           `json:"full_mean"` // with managed fields, in JSON
	Keys        []string      `json:"keys"`      // some
	Values      []string      `json:"values"`    // some of the index that gives PodsPerNode objects a value
	Took        time.Duration `json:"took"`
}

// sampleKeys is how many keys and values a source tells.
const sampleKeys = 2000

// SourceServer is the servant that stands for reflector and cluster: it
// publishes a population and then, when asked, changes.
func SourceServer(ctx context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg SourceConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	conn, err := stream.Connect(ctx, stream.Config{URL: cfg.NATS})
	if err != nil {
		return nil, err
	}
	s := &source{cfg: cfg, state: map[delta.Key]ObjectState{}}
	if s.writer, err = conn.Writer(ctx, cfg.Collection(), stream.WriterConfig{Term: 1, Holder: "bench"}); err == nil {
		err = s.populate(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &harness.Servant{Info: s.info, Ops: map[string]harness.Op{
		"hash":  func(context.Context, json.RawMessage) (any, error) { return s.hash(), nil },
		"churn": s.churn,
	}, Stop: func() error { s.writer.Close(); conn.Close(); return nil }}, nil
}

// smallCollection is where small objects are published.
var smallCollection = delta.Collection{Cluster: "bench", Version: "v1", Resource: "configmaps"}

// Collection is the collection that is published.
func (c SourceConfig) Collection() delta.Collection {
	if c.Templates == 0 {
		return smallCollection
	}
	return population.PodsCollection
}

type source struct {
	cfg    SourceConfig
	writer *stream.Writer
	info   SourceInfo
	state  map[delta.Key]ObjectState
	kept   []delta.Record
	rv     int
	queue  []delta.Record
}

// ObjectState is what the source knows of an object.
type ObjectState struct {
	RV   string
	Hash uint64
}

// populate publishes a complete list.
func (s *source) populate(ctx context.Context) error {
	began := time.Now()
	err := s.smallObjects(ctx)
	if s.cfg.Templates > 0 {
		err = s.pods(ctx)
	}
	if err != nil {
		return err
	}
	s.rv = population.FirstRV + s.info.Objects
	last := strconv.Itoa(s.rv)
	s.queue = append(s.queue, delta.Record{Kind: delta.KindSynced, Collection: s.cfg.Collection(), RV: last, Watermark: last})
	if err := errors.Join(s.flush(ctx), s.writer.Flush(ctx)); err != nil {
		return err
	}
	s.info.PayloadMean /= s.info.Objects
	s.info.FullMean /= s.info.Objects
	s.info.Hash, s.info.Versions = s.hash(), s.versions()
	s.info.Took = time.Since(began)
	return nil
}

func (s *source) pods(ctx context.Context) error {
	var list *podList
	if s.cfg.Lists != "" {
		var err error
		if list, err = newPodList(s.cfg.Lists); err != nil {
			return err
		}
	}
	var m population.Managers
	seen := map[string]bool{}
	for template, p := range population.NewGenerator(s.cfg.Seed, s.cfg.Templates).Each(s.cfg.Objects) {
		full := p
		if list != nil || s.cfg.Managed {
			var err error
			if full, err = m.Manage(template, p); err != nil {
				return err
			}
		}
		r := population.Record(p, delta.Added)
		if s.cfg.Managed {
			r = population.Record(full, delta.Added)
		}
		if node := p.Spec.NodeName; !seen[node] && len(s.info.Values) < sampleKeys {
			seen[node], s.info.Values = true, append(s.info.Values, node)
		}
		if len(s.kept) < s.cfg.Keep {
			s.kept = append(s.kept, r)
		}
		if err := s.add(ctx, r); err != nil {
			return err
		}
		if list == nil {
			continue
		}
		s.info.FullMean += len(population.Payload(full))
		if err := list.add(full); err != nil {
			return err
		}
	}
	if list == nil {
		return nil
	}
	return list.close(strconv.Itoa(population.FirstRV + s.info.Objects))
}

// smallObjects publishes config maps of some 350 bytes, PodsPerNode to an owner.
func (s *source) smallObjects(ctx context.Context) error {
	if s.cfg.Templates > 0 {
		return nil
	}
	random := rand.New(rand.NewPCG(s.cfg.Seed, 1)) //nolint:gosec // a population, not a secret
	var owner string
	for i := range s.cfg.Objects {
		if i%population.PodsPerNode == 0 {
			owner = string(population.UID(random))
			if len(s.info.Values) < sampleKeys {
				s.info.Values = append(s.info.Values, owner)
			}
		}
		namespace, name, id, rv := fmt.Sprintf("team-%03d", i%400), "settings-"+population.Suffix(random, 6)+strconv.Itoa(i), string(population.UID(random)), strconv.Itoa(population.FirstRV+i)
		body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":%q,"uid":%q,"resourceVersion":%q,`+
			`"creationTimestamp":%q,"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"app-%d","uid":%q}]},"data":{"mode":%q,"weight":"%d"}}`,
			name, namespace, id, rv, population.MadeAt.Add(time.Duration(i)*time.Second).Format(time.RFC3339), i/population.PodsPerNode, owner, population.Words[i%len(population.Words)], random.IntN(1000))
		r := delta.Record{
			Kind: delta.KindDelta, Collection: smallCollection, Key: delta.NewKey(namespace, name), UID: id, Type: delta.Added, RV: rv,
			Payload: body, Encoding: delta.EncodingJSON, Hash: delta.Hash(body), ObservedAt: time.Now(),
			Owners: []delta.Owner{{Kind: "ReplicaSet", Name: "app-" + strconv.Itoa(i/population.PodsPerNode), UID: owner}},
		}
		if err := s.add(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// add publishes an object of the list.
func (s *source) add(ctx context.Context, r delta.Record) error {
	r.Watermark = "" // a list vouches for nothing before its end
	s.state[r.Key] = ObjectState{r.RV, r.Hash}
	s.info.Objects++
	s.info.PayloadMean += len(r.Payload)
	if len(s.info.Keys) < sampleKeys {
		s.info.Keys = append(s.info.Keys, string(r.Key))
	}
	if s.queue = append(s.queue, r); len(s.queue) < 256 {
		return nil
	}
	return s.flush(ctx)
}

func (s *source) flush(ctx context.Context) error {
	err := s.writer.Append(ctx, s.queue)
	s.queue = s.queue[:0]
	return err
}

// ChurnArgs is a stretch of changes.
type ChurnArgs struct {
	Rate int           `json:"rate"` // a second, open loop
	For  time.Duration `json:"for"`
}

// churn updates one kept pod after another at a fixed rate, whatever becomes of
// the updates, and returns their number.
func (s *source) churn(ctx context.Context, raw json.RawMessage) (any, error) {
	var args ChurnArgs
	if err := json.Unmarshal(raw, &args); err != nil {
		return nil, err
	}
	n := int(args.For.Seconds() * float64(args.Rate))
	began := time.Now()
	for i := range n {
		if wait := time.Duration(i)*time.Second/time.Duration(args.Rate) - time.Since(began); wait > 0 {
			time.Sleep(wait)
		}
		at := i % len(s.kept)
		s.rv++
		r := Revised(s.kept[at], strconv.Itoa(s.rv))
		s.kept[at], s.state[r.Key] = r, ObjectState{r.RV, r.Hash}
		if err := s.writer.Append(ctx, []delta.Record{r}); err != nil {
			return nil, err
		}
	}
	return n, s.writer.Flush(ctx)
}

// Revised is the next version of an object: nothing in it differs but the
// resource version, which has as many digits as before.
func Revised(r delta.Record, rv string) delta.Record {
	r.Payload = bytes.Replace(r.Payload, []byte(`"resourceVersion":"`+r.RV+`"`), []byte(`"resourceVersion":"`+rv+`"`), 1)
	r.Type, r.RV, r.Watermark, r.Hash, r.ObservedAt = delta.Updated, rv, rv, delta.Hash(r.Payload), time.Now()
	return r
}
