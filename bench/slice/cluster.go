package slice

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// clusterSize is how many pods the real API server holds.
const clusterSize = 20_000

// clusterPods measures how long it takes until the pods of a real API server can
// be read: by our reflector, log and indexer, three processes that begin with
// nothing, and by a client-go informer with the same three indexes in a process
// of its own.
func clusterPods(ctx context.Context, b *harness.Bench) (err error) {
	if b.Quick {
		b.LeaveOut("20,000 pods on a real API server, beside an informer", "--quick")
		return nil
	}
	kubeconfig := b.Kubeconfig
	if kubeconfig == "" {
		c, err := startCluster(ctx, b)
		if errors.Is(err, system.ErrNoCluster) {
			b.LeaveOut("20,000 pods on a real API server, beside an informer", err.Error())
			return nil
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Down()) }()
		kubeconfig = c.Kubeconfig()
	}
	var hashes []string
	n := 0
	turn := func(name string, load func(context.Context, int) (map[string]float64, string, error)) harness.Side {
		return harness.Side{Name: name, Run: func(ctx context.Context, _ time.Duration) (map[string]float64, error) {
			n++
			got, hash, err := load(ctx, n)
			hashes = append(hashes, hash)
			return got, err
		}}
	}
	t, err := harness.Interleave(ctx, b, harness.Plan{What: "cluster", Rounds: 5, Turn: time.Second},
		turn("informer", func(ctx context.Context, _ int) (map[string]float64, string, error) {
			return loadByInformer(ctx, b, kubeconfig)
		}),
		turn("ours", func(ctx context.Context, n int) (map[string]float64, string, error) {
			return pipelineLoad(ctx, b, kubeconfig, filepath.Join(b.Dir, fmt.Sprintf("pipeline-%d", n)))
		}),
	)
	if err != nil {
		return err
	}
	b.Note("cluster: a turn is one load, whatever its length; foreign CPU includes that of the API server and etcd")
	b.Note("cluster: informer: client-go, protobuf, whole objects, indexes by namespace, node and owner; ours: NATS, reflector and indexer in a process each, log with 1 replica in a file; every load ended with the same set of %d keys and resource versions", clusterSize)
	f := harness.Compare("20,000 pods on a real API server, until served", "s", t.Of("ours", "seconds"), "client-go informer", t.Of("informer", "seconds"), harness.AtMost("ratio", 2))
	f = f.With("CPU", "s", t.Of("ours", "cpu")).With("informer's", "s", t.Of("informer", "cpu"))
	b.Add(f.With("peak RSS of indexer", "MB", t.Of("ours", "rss")).With("informer's", "MB", t.Of("informer", "rss")))
	if other := slices.IndexFunc(hashes, func(h string) bool { return h != hashes[0] }); other >= 0 {
		return fmt.Errorf("load %d ended with other keys or versions than the first", other+1)
	}
	return nil
}

// loadByInformer is one load by the peer.
func loadByInformer(ctx context.Context, b *harness.Bench, kubeconfig string) (_ map[string]float64, hash string, err error) {
	peer, err := b.Spawn(ctx, "informer", harness.Place{}, kubeconfig, nil)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, peer.Stop()) }()
	before, err := peer.Usage()
	if err != nil {
		return nil, "", err
	}
	var got system.InformerResult
	if err := peer.Call("load", clusterSize, &got); err != nil {
		return nil, "", err
	}
	after, err := peer.Usage()
	return map[string]float64{
		"seconds": got.Took.Seconds(), "cpu": (after.CPU - before.CPU).Seconds(), "rss": float64(after.PeakRSS) / 1e6,
	}, got.Hash, err
}

// pipelineLoad is one load by ours. The clock runs from the moment the services
// are instructed to start until a Count over gRPC tells that all objects are served.
func pipelineLoad(ctx context.Context, b *harness.Bench, kubeconfig, dir string) (_ map[string]float64, hash string, err error) {
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var url, addr string
	nats, err := b.Spawn(ctx, "pipeline", harness.Place{}, system.PipelineConfig{Part: "nats", Dir: dir}, &url)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, nats.Stop()) }()
	index, err := b.Spawn(ctx, "pipeline", harness.Place{}, system.PipelineConfig{Part: "indexer", NATS: url}, nil)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, index.Stop()) }()
	reflect, err := b.Spawn(ctx, "pipeline", harness.Place{}, system.PipelineConfig{Part: "reflector", NATS: url, Kubeconfig: kubeconfig}, nil)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, reflect.Stop()) }()
	all := []*harness.Child{nats, index, reflect}
	before, err := sumCPU(all)
	if err != nil {
		return nil, "", err
	}
	var took time.Duration
	var conns load.Pool
	err = b.Profiled(nats, "cluster-nats", func() error {
		return b.Profiled(index, "cluster-indexer", func() error {
			return b.Profiled(reflect, "cluster-reflector", func() error {
				began := time.Now()
				if err := errors.Join(index.Call("start", nil, &addr), reflect.Call("start", nil, nil)); err != nil {
					return err
				}
				if conns, err = load.Dial(addr, 1); err != nil {
					return err
				}
				limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
				defer cancel()
				err = system.AwaitObjects(limited, conns, population.PodsCollection.String(), clusterSize)
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
	used, err := index.Usage()
	if err != nil {
		return nil, "", err
	}
	hash, err = indexHash(ctx, conns)
	return map[string]float64{
		"seconds": took.Seconds(), "cpu": (after - before).Seconds(), "rss": float64(used.PeakRSS) / 1e6,
	}, hash, err
}

func sumCPU(all []*harness.Child) (sum time.Duration, err error) {
	for _, c := range all {
		u, err := c.Usage()
		if err != nil {
			return 0, err
		}
		sum += u.CPU
	}
	return sum, nil
}

// indexHash sums up keys and versions of what an index holds.
func indexHash(ctx context.Context, conns load.Pool) (string, error) {
	client := indexv1.NewIndexServiceClient(conns[0])
	var versions []string
	for token := ""; ; {
		page, err := client.List(ctx, &indexv1.ListRequest{
			Collection: population.PodsCollection.String(), View: indexv1.View_VIEW_METADATA, PageSize: 1000, PageToken: token,
		})
		if err != nil {
			return "", err
		}
		for _, o := range page.GetObjects() {
			versions = append(versions, o.GetKey()+"="+o.GetResourceVersion())
		}
		if token = page.GetNextPageToken(); token == "" {
			return system.VersionHash(versions), nil
		}
	}
}

func startCluster(ctx context.Context, b *harness.Bench) (*system.TestCluster, error) {
	// No node of the population exists, so that nobody updates its pods.
	c, err := system.BareCluster(ctx, b, filepath.Join(b.Dir, "kube"))
	if err != nil {
		return nil, err
	}
	p := population.Populate(b.Seed, clusterSize, 600)
	lines, err := p.Lines()
	if err != nil {
		return nil, errors.Join(err, c.Down())
	}
	b.Say("  writing %d pods to etcd", clusterSize)
	if err := c.Run(ctx, lines, "seed"); err != nil {
		return nil, errors.Join(err, c.Down())
	}
	return c, nil
}
