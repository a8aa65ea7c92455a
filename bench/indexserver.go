package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

type indexServerConfig struct {
	Dir       string `json:"dir"` // of NATS
	Seed      uint64 `json:"seed"`
	Pods      int    `json:"pods"`
	Templates int    `json:"templates"`
}

type indexServerInfo struct {
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
	conn *stream.Conn
	addr string
	stop func() error
}

// startIndexer runs an embedded NATS in dir and an indexer on it.
func startIndexer(ctx context.Context, dir string) (*indexing, error) {
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
	return &indexing{conn: conn, addr: addr, stop: func() error {
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
	s, err := indexer.New(indexer.Config{DiscoverEvery: 50 * time.Millisecond}, conn, tel)
	if err != nil {
		return "", nil, err
	}
	stop = inBackground(ctx, s.Run)
	addr, err = s.Addr(ctx)
	return addr, stop, err
}

// inBackground runs a service until stop is called, which returns what it returned.
func inBackground(ctx context.Context, run func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	return func() error { cancel(); return <-ended }
}

// indexServer is the servant that serves a population and an echo.
func indexServer(ctx context.Context, raw json.RawMessage) (*servant, error) {
	var cfg indexServerConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	x, err := startIndexer(ctx, cfg.Dir)
	if err != nil {
		return nil, err
	}
	info, err := loadIndex(ctx, x, cfg)
	if err != nil {
		return nil, errors.Join(err, x.stop())
	}
	return &servant{info: info, stop: x.stop}, nil
}

func loadIndex(ctx context.Context, x *indexing, cfg indexServerConfig) (indexServerInfo, error) {
	info := indexServerInfo{Index: x.addr}
	p := populate(cfg.Seed, cfg.Pods, cfg.Templates)
	began := time.Now()
	w, err := publish(ctx, x.conn, p.pods)
	if err != nil {
		return info, err
	}
	w.Close()
	conns, err := dial(x.addr, 1)
	if err != nil {
		return info, err
	}
	defer conns.Close()
	if err := awaitObjects(ctx, conns, podsCollection.String(), len(p.pods)); err != nil {
		return info, err
	}
	info.Load = time.Since(began)
	seen := map[string]bool{}
	for i, pod := range p.pods {
		info.PayloadMean += len(payload(pod))
		if i < 2000 {
			info.Keys = append(info.Keys, pod.Namespace+"/"+pod.Name)
		}
		if !seen[pod.Spec.NodeName] {
			seen[pod.Spec.NodeName] = true
			info.Nodes = append(info.Nodes, pod.Spec.NodeName)
		}
	}
	info.PayloadMean /= len(p.pods)
	client := indexv1.NewIndexServiceClient(conns[0])
	got, err := client.Get(ctx, getRequest(info.Keys[0]))
	if err != nil {
		return info, err
	}
	hits, err := client.ByIndex(ctx, byIndexRequest(info.Nodes[0]))
	if err != nil {
		return info, err
	}
	if len(hits.GetObjects()) != podsPerNode {
		return info, fmt.Errorf("node %s has %d pods in the index, want %d", info.Nodes[0], len(hits.GetObjects()), podsPerNode)
	}
	e := &echo{get: oneAnswer(encoded(got)), byIndex: oneAnswer(encoded(hits))}
	info.GetSize, info.ByIndexSize = proto.Size(got), proto.Size(hits)
	info.Echo, err = startEcho(ctx, e)
	return info, err
}

func getRequest(key string) *indexv1.GetRequest {
	return &indexv1.GetRequest{Collection: podsCollection.String(), Key: key}
}

func byIndexRequest(node string) *indexv1.ByIndexRequest {
	return &indexv1.ByIndexRequest{
		Collection: podsCollection.String(), Index: "node", Values: []string{node}, View: indexv1.View_VIEW_KEYS,
	}
}

func encoded(m proto.Message) *wire {
	data, err := proto.Marshal(m)
	if err != nil {
		panic(err) // messages made here have no invalid text
	}
	return &wire{data: data}
}

// awaitObjects returns once an indexer serves a collection with at least n objects.
func awaitObjects(ctx context.Context, conns pool, collection string, n int) error {
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
