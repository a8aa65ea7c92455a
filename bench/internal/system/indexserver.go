package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// IndexServerConfig is an index service with a population of its own.
type IndexServerConfig struct {
	Dir       string `json:"dir"` // of NATS
	Seed      uint64 `json:"seed"`
	Pods      int    `json:"pods"`
	Templates int    `json:"templates"`
}

// IndexServerInfo is where it serves, and keys and nodes to ask for.
type IndexServerInfo struct {
	Index       string        `json:"index"` // host:port
	Echo        string        `json:"echo"`
	Keys        []string      `json:"keys"`
	Nodes       []string      `json:"nodes"`
	PayloadMean int           `json:"payload_mean"`
	GetSize     int           `json:"get_size"`
	ByIndexSize int           `json:"by_index_size"`
	Load        time.Duration `json:"load"` // from the first append until it could be read
}

// indexing is an indexer and the log it follows, in this process.
type indexing struct {
	Conn *stream.Conn
	Addr string
	Stop func() error
}

// StartIndexer runs an embedded NATS in dir and an indexer on it.
func StartIndexer(ctx context.Context, dir string) (*indexing, error) {
	nats, err := embedded.StartNATS(embedded.NATSConfig{Dir: dir})
	if err != nil {
		return nil, err
	}
	var cfg stream.Config
	cfg.Options = append(cfg.Options, nats.InProcess())
	conn, err := stream.Connect(ctx, cfg)
	if err != nil {
		nats.Stop()
		return nil, err
	}
	addr, stop, err := runIndexer(ctx, conn)
	if err != nil {
		conn.Close()
		nats.Stop()
		return nil, err
	}
	return &indexing{Conn: conn, Addr: addr, Stop: func() error {
		err := stop()
		conn.Close()
		nats.Stop()
		return err
	}}, nil
}

// runIndexer serves the collections of a log on a free loopback port.
func runIndexer(ctx context.Context, conn *stream.Conn) (addr string, stop func() error, err error) {
	tel, err := telemetry.Setup(ctx, telemetry.Config{Service: "indexer", LogLevel: "warn"})
	if err != nil {
		return "", nil, err
	}
	s, err := indexer.New(indexer.Config{RPC: rpc.ServerConfig{TLS: load.ServerTLS()}, DiscoverEvery: 50 * time.Millisecond}, conn, tel)
	if err != nil {
		return "", nil, err
	}
	stop = harness.InBackground(ctx, s.Run)
	addr, err = s.Addr(ctx)
	return addr, stop, err
}

// IndexServer is the servant that serves a population and an echo.
func IndexServer(ctx context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg IndexServerConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	x, err := StartIndexer(ctx, cfg.Dir)
	if err != nil {
		return nil, err
	}
	info, err := loadIndex(ctx, x, cfg)
	if err != nil {
		return nil, errors.Join(err, x.Stop())
	}
	return &harness.Servant{Info: info, Stop: x.Stop}, nil
}

func loadIndex(ctx context.Context, x *indexing, cfg IndexServerConfig) (IndexServerInfo, error) {
	info := IndexServerInfo{Index: x.Addr}
	p := population.Populate(cfg.Seed, cfg.Pods, cfg.Templates)
	began := time.Now()
	w, err := population.Publish(ctx, x.Conn, p.Pods)
	if err != nil {
		return info, err
	}
	w.Close()
	conns, err := load.Dial(x.Addr, 1)
	if err != nil {
		return info, err
	}
	defer conns.Close()
	if err := AwaitObjects(ctx, conns, population.PodsCollection.String(), len(p.Pods)); err != nil {
		return info, err
	}
	info.Load = time.Since(began)
	seen := map[string]bool{}
	for i, pod := range p.Pods {
		info.PayloadMean += len(population.Payload(pod))
		if i < 2000 {
			info.Keys = append(info.Keys, pod.Namespace+"/"+pod.Name)
		}
		if !seen[pod.Spec.NodeName] {
			seen[pod.Spec.NodeName] = true
			info.Nodes = append(info.Nodes, pod.Spec.NodeName)
		}
	}
	info.PayloadMean /= len(p.Pods)
	client := indexv1.NewIndexServiceClient(conns[0])
	got, err := client.Get(ctx, GetRequest(info.Keys[0]))
	if err != nil {
		return info, err
	}
	hits, err := client.ByIndex(ctx, ByIndexRequest(info.Nodes[0]))
	if err != nil {
		return info, err
	}
	if len(hits.GetObjects()) != population.PodsPerNode {
		return info, fmt.Errorf("node %s has %d pods in the index, want %d", info.Nodes[0], len(hits.GetObjects()), population.PodsPerNode)
	}
	e := &load.Echo{Get: load.OneAnswer(Encoded(got)), ByIndex: load.OneAnswer(Encoded(hits))}
	info.GetSize, info.ByIndexSize = proto.Size(got), proto.Size(hits)
	info.Echo, err = load.StartEcho(ctx, e)
	return info, err
}

// GetRequest asks for one pod.
func GetRequest(key string) *indexv1.GetRequest {
	return &indexv1.GetRequest{Collection: population.PodsCollection.String(), Key: key}
}

// ByIndexRequest asks for the keys of the pods of a node.
func ByIndexRequest(node string) *indexv1.ByIndexRequest {
	return &indexv1.ByIndexRequest{
		Collection: population.PodsCollection.String(), Index: "node", Values: []string{node}, View: indexv1.View_VIEW_KEYS,
	}
}

// Encoded is a message as bytes for the wire.
func Encoded(m proto.Message) *load.Wire {
	data, err := proto.Marshal(m)
	if err != nil {
		panic(err) // messages made here have no invalid text
	}
	return &load.Wire{Data: data}
}

// AwaitObjects returns once an indexer serves a collection with at least n objects.
func AwaitObjects(ctx context.Context, conns load.Pool, collection string, n int) error {
	client := indexv1.NewIndexServiceClient(conns[0])
	for tick := time.NewTicker(2 * time.Millisecond); ; {
		got, err := client.Count(ctx, &indexv1.CountRequest{Collection: collection})
		if err == nil && got.GetCount() >= int64(n) {
			tick.Stop()
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}
