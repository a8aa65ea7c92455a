package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/internal/embedded"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// clusterSize is how many pods the real API server holds.
const clusterSize = 20_000

// clusterPods measures how long it takes until the pods of a real API server can
// be read: by our reflector, log and indexer, three processes that begin with
// nothing, and by a client-go informer with the same three indexes in a process
// of its own.
func clusterPods(ctx context.Context, b *bench) (err error) {
	if b.quick {
		b.leaveOut("20,000 pods on a real API server, beside an informer", "--quick")
		return nil
	}
	kubeconfig := b.kubeconfig
	if kubeconfig == "" {
		c, err := startCluster(ctx, b)
		if errors.Is(err, errNoCluster) {
			b.leaveOut("20,000 pods on a real API server, beside an informer", err.Error())
			return nil
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.down()) }()
		kubeconfig = c.kubeconfig()
	}
	var hashes []string
	n := 0
	turn := func(name string, load func(context.Context, int) (map[string]float64, string, error)) side {
		return side{name, func(ctx context.Context, _ time.Duration) (map[string]float64, error) {
			n++
			got, hash, err := load(ctx, n)
			hashes = append(hashes, hash)
			return got, err
		}}
	}
	t, err := interleave(ctx, b, plan{what: "cluster", rounds: 5, turn: time.Second},
		turn("informer", func(ctx context.Context, _ int) (map[string]float64, string, error) {
			return loadByInformer(ctx, b, kubeconfig)
		}),
		turn("ours", func(ctx context.Context, n int) (map[string]float64, string, error) {
			return pipelineLoad(ctx, b, kubeconfig, filepath.Join(b.dir, fmt.Sprintf("pipeline-%d", n)))
		}),
	)
	if err != nil {
		return err
	}
	b.note("cluster: a turn is one load, whatever its length; foreign CPU includes that of the API server and etcd")
	b.note("cluster: informer: client-go, protobuf, whole objects, indexes by namespace, node and owner; ours: NATS, reflector and indexer in a process each, log with 1 replica in a file; every load ended with the same set of %d keys and resource versions", clusterSize)
	f := compare("20,000 pods on a real API server, until served", "s", t.of("ours", "seconds"), "client-go informer", t.of("informer", "seconds"), atMost("ratio", 2))
	f = f.with("CPU", "s", t.of("ours", "cpu")).with("informer's", "s", t.of("informer", "cpu"))
	b.add(f.with("peak RSS of indexer", "MB", t.of("ours", "rss")).with("informer's", "MB", t.of("informer", "rss")))
	if other := slices.IndexFunc(hashes, func(h string) bool { return h != hashes[0] }); other >= 0 {
		return fmt.Errorf("load %d ended with other keys or versions than the first", other+1)
	}
	return nil
}

// loadByInformer is one load by the peer.
func loadByInformer(ctx context.Context, b *bench, kubeconfig string) (_ map[string]float64, hash string, err error) {
	peer, err := b.spawn(ctx, "informer", place{}, kubeconfig, nil)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, peer.stop()) }()
	before, err := peer.usage()
	if err != nil {
		return nil, "", err
	}
	var got informerResult
	if err := peer.call("load", clusterSize, &got); err != nil {
		return nil, "", err
	}
	after, err := peer.usage()
	return map[string]float64{
		"seconds": got.Took.Seconds(), "cpu": (after.CPU - before.CPU).Seconds(), "rss": float64(after.PeakRSS) / 1e6,
	}, got.Hash, err
}

// pipelineLoad is one load by ours. The clock runs from the moment the services
// are told to start until a Count over gRPC tells that all objects are served.
func pipelineLoad(ctx context.Context, b *bench, kubeconfig, dir string) (_ map[string]float64, hash string, err error) {
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var url, addr string
	nats, err := b.spawn(ctx, "pipeline", place{}, pipelineConfig{Part: "nats", Dir: dir}, &url)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, nats.stop()) }()
	index, err := b.spawn(ctx, "pipeline", place{}, pipelineConfig{Part: "indexer", NATS: url}, nil)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, index.stop()) }()
	reflect, err := b.spawn(ctx, "pipeline", place{}, pipelineConfig{Part: "reflector", NATS: url, Kubeconfig: kubeconfig}, nil)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, reflect.stop()) }()
	all := []*child{nats, index, reflect}
	before, err := sumCPU(all)
	if err != nil {
		return nil, "", err
	}
	var took time.Duration
	var conns pool
	err = b.profiled(nats, "cluster-nats", func() error {
		return b.profiled(index, "cluster-indexer", func() error {
			return b.profiled(reflect, "cluster-reflector", func() error {
				began := time.Now()
				if err := errors.Join(index.call("start", nil, &addr), reflect.call("start", nil, nil)); err != nil {
					return err
				}
				if conns, err = dial(addr, 1); err != nil {
					return err
				}
				limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
				defer cancel()
				err = awaitObjects(limited, conns, podsCollection.String(), clusterSize)
				took = time.Since(began)
				return err
			})
		})
	})
	defer func() { err = errors.Join(err, conns.Close()) }()
	if err != nil {
		return nil, "", fmt.Errorf("the index does not serve %d pods: %w", clusterSize, err)
	}
	after, err := sumCPU(all)
	if err != nil {
		return nil, "", err
	}
	used, err := index.usage()
	if err != nil {
		return nil, "", err
	}
	hash, err = indexHash(ctx, conns)
	return map[string]float64{
		"seconds": took.Seconds(), "cpu": (after - before).Seconds(), "rss": float64(used.PeakRSS) / 1e6,
	}, hash, err
}

func sumCPU(all []*child) (sum time.Duration, err error) {
	for _, c := range all {
		u, err := c.usage()
		if err != nil {
			return 0, err
		}
		sum += u.CPU
	}
	return sum, nil
}

// indexHash sums up keys and versions of what an index holds.
func indexHash(ctx context.Context, conns pool) (string, error) {
	client := indexv1.NewIndexServiceClient(conns[0])
	var versions []string
	for token := ""; ; {
		page, err := client.List(ctx, &indexv1.ListRequest{
			Collection: podsCollection.String(), View: indexv1.View_VIEW_METADATA, PageSize: 1000, PageToken: token,
		})
		if err != nil {
			return "", err
		}
		for _, o := range page.GetObjects() {
			versions = append(versions, o.GetKey()+"="+o.GetResourceVersion())
		}
		if token = page.GetNextPageToken(); token == "" {
			return versionHash(versions), nil
		}
	}
}

// versionHash sums up "key=version" strings in any order.
func versionHash(versions []string) string {
	slices.Sort(versions)
	sum := sha256.Sum256([]byte(strings.Join(versions, "\n")))
	return fmt.Sprintf("%d:%s", len(versions), hex.EncodeToString(sum[:]))
}

// errNoCluster says that no real API server could be started here.
var errNoCluster = errors.New("no cluster")

// testCluster is a cluster of test/kube that this bench started.
type testCluster struct {
	module, dir string
	stderr      *bytes.Buffer
}

func startCluster(ctx context.Context, b *bench) (*testCluster, error) {
	// No node of the population exists, so that nobody updates its pods.
	c, err := bareCluster(ctx, b, filepath.Join(b.dir, "kube"))
	if err != nil {
		return nil, err
	}
	p := populate(b.seed, clusterSize, 600)
	lines, err := p.lines()
	if err != nil {
		return nil, errors.Join(err, c.down())
	}
	b.say("  writing %d pods to etcd", clusterSize)
	if err := c.run(ctx, lines, "seed"); err != nil {
		return nil, errors.Join(err, c.down())
	}
	return c, nil
}

// bareCluster starts a cluster without nodes in dir.
func bareCluster(ctx context.Context, b *bench, dir string, args ...string) (*testCluster, error) {
	root, err := repoRoot()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCluster, err)
	}
	c := &testCluster{module: filepath.Join(root, "test", "kube"), dir: dir, stderr: &bytes.Buffer{}}
	b.say("  starting a cluster; the first time compiles Kubernetes, some minutes")
	if err := c.run(ctx, nil, "up", append([]string{"--detach", "--nodes", "0"}, args...)...); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCluster, err)
	}
	return c, nil
}

func (c *testCluster) kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

func (c *testCluster) run(ctx context.Context, in []byte, command string, args ...string) error {
	return c.feed(ctx, bytes.NewReader(in), command, args...)
}

// feed runs a command of test/kube with an input.
func (c *testCluster) feed(ctx context.Context, in io.Reader, command string, args ...string) error {
	c.stderr.Reset()
	//nolint:gosec // our own program
	cmd := exec.CommandContext(ctx, "go", append([]string{"run", "./cmd/kube", command, "--dir", c.dir}, args...)...)
	cmd.Dir, cmd.Stderr, cmd.Stdin = c.module, c.stderr, in
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("kube %s: %w: %s", command, err, c.stderr)
	}
	return nil
}

func (c *testCluster) down() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // also when the run was interrupted
	defer cancel()
	return c.run(ctx, nil, "down")
}

type pipelineConfig struct {
	Part       string `json:"part"` // nats, indexer or reflector
	Dir        string `json:"dir"`
	NATS       string `json:"nats"`
	Kubeconfig string `json:"kubeconfig"`
}

// pipelineServer is the servant for one part of the pipeline. NATS runs at once,
// the services when they are told to start.
func pipelineServer(_ context.Context, raw json.RawMessage) (*servant, error) {
	var cfg pipelineConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	if cfg.Part == "nats" {
		nats, err := embedded.StartNATS(embedded.NATSConfig{Dir: cfg.Dir, Listen: "127.0.0.1:0"})
		if err != nil {
			return nil, err
		}
		return &servant{info: nats.URL(), stop: func() error { nats.Stop(); return nil }}, nil
	}
	start := map[string]func(context.Context, pipelineConfig) (string, func() error, error){
		"indexer": startPodIndexer, "reflector": startPodReflector,
	}[cfg.Part]
	if start == nil {
		return nil, fmt.Errorf("unknown part %q", cfg.Part)
	}
	s := &servant{}
	s.ops = map[string]op{"start": func(ctx context.Context, _ json.RawMessage) (addr any, err error) {
		addr, s.stop, err = start(ctx, cfg)
		return addr, err
	}}
	return s, nil
}

func startPodIndexer(ctx context.Context, cfg pipelineConfig) (string, func() error, error) {
	addr, stop, _, err := startReplica(ctx, replicaConfig{NATS: cfg.NATS, Collection: podsCollection.String()})
	return addr, stop, err
}

func startPodReflector(ctx context.Context, cfg pipelineConfig) (string, func() error, error) {
	return startReflector(ctx, reflectorConfig{NATS: cfg.NATS, Kubeconfig: cfg.Kubeconfig})
}
