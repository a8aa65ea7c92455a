package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// logSync measures how long it takes to bring the pods of an API server into the
// log, up to the last of them, beside the sync of client-go informers. Every
// turn begins with nothing, each part in a process of its own.
func logSync(ctx context.Context, b *harness.Bench) error {
	if b.Quick {
		b.LeaveOut("20,000 and 100,000 pods on a real API server", "--quick; 9,990 of a scripted one instead")
		return scriptedSync(ctx, b, 9990)
	}
	err := clusterSyncs(ctx, b)
	if errors.Is(err, system.ErrNoCluster) {
		b.LeaveOut("sync from a real API server", err.Error()+"; from a scripted one instead")
		return errors.Join(scriptedSync(ctx, b, 20_010), scriptedSync(ctx, b, 100_020))
	}
	return err
}

// scriptedSync syncs from an API server whose answers cost it next to nothing.
func scriptedSync(ctx context.Context, b *harness.Bench, pods int) (err error) {
	s, err := startScript(ctx, b, "sync", scriptConfig{Pods: pods, Templates: harness.Pick(b, 500, 600), Managed: true, Streams: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	b.Note("sync: %d pods, seed %d, %d bytes each in JSON as sent, %d as published", pods, b.Seed, s.FullMean, s.BareMean)
	var versions, hash string
	if err := errors.Join(s.Call("versions", nil, &versions), s.Call("hash", nil, &hash)); err != nil {
		return err
	}
	return syncOnce(ctx, b, syncing{what: "scripted API server", pods: pods, url: s.URL, versions: versions, hash: hash})
}

// clusterSyncs syncs from a real API server, first with 20,000 pods, then with 100,000.
func clusterSyncs(ctx context.Context, b *harness.Bench) (err error) {
	c, err := system.BareCluster(ctx, b, filepath.Join(b.Dir, "kube"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Down()) }()
	total := 0
	for round, pods := range []int{20_010, 80_010} {
		if err := seedManaged(ctx, b, c, b.Seed+uint64(round), pods); err != nil {
			return err
		}
		total += pods
		if err := syncOnce(ctx, b, syncing{what: "real API server", pods: total, kubeconfig: c.Kubeconfig()}); err != nil {
			return err
		}
	}
	return nil
}

// seedManaged writes pods with managed fields to the etcd of a cluster.
func seedManaged(ctx context.Context, b *harness.Bench, c *system.TestCluster, seed uint64, pods int) (err error) {
	file, err := os.Create(b.PathIn("seed.jsonl"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(file.Name())) }()
	size, err := population.WriteManaged(file, seed, pods)
	if err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	b.Say("  writing %d pods to etcd", pods)
	b.Note("sync: %d pods of 600 templates, seed %d, %d bytes each in JSON", pods, seed, size/pods)
	return c.Feed(ctx, file, "seed")
}

// syncing is one API server to sync from.
type syncing struct {
	what            string
	pods            int
	url, kubeconfig string
	// versions and hash are of its state; empty when only the peers tell.
	versions, hash string
}

// syncOnce lets a reflector and informers take turns.
func syncOnce(ctx context.Context, b *harness.Bench, s syncing) error {
	n := 0
	peer := func(name string, protobuf bool) harness.Side {
		return harness.Side{Name: name, Run: func(ctx context.Context, _ time.Duration) (map[string]float64, error) {
			got, versions, err := syncPeer(ctx, b, jsonConfig{URL: s.url, Kubeconfig: s.kubeconfig, Count: 1, Protobuf: protobuf}, s.pods)
			switch {
			case err != nil:
			case !strings.HasPrefix(versions, strconv.Itoa(s.pods)+":"):
				err = fmt.Errorf("the informer holds other pods than were written: %s, want %d", versions, s.pods)
			case s.versions == "":
				s.versions = versions // the first to tell is a peer
			case versions != s.versions:
				err = fmt.Errorf("the informer holds other keys or versions: %s, want %s", versions, s.versions)
			}
			return got, err
		}}
	}
	sides := []harness.Side{peer("json", false), {Name: "ours", Run: func(ctx context.Context, _ time.Duration) (map[string]float64, error) {
		n++
		return syncOurs(ctx, b, s, fmt.Sprintf("sync-%d-%d", s.pods, n))
	}}}
	if s.kubeconfig != "" {
		sides = append(sides, peer("protobuf", true))
	}
	many := s.pods > 50_000 // what there is to warm up is warm by then
	rounds := harness.Pick(b, 1, 3)
	if many {
		rounds = 2
	}
	t, err := harness.Interleave(ctx, b, harness.Plan{What: fmt.Sprintf("sync, %d pods", s.pods), Rounds: rounds, Cold: b.Quick || many, Turn: time.Second}, sides...)
	if err != nil {
		return err
	}
	b.Note("sync: a turn is one sync, whatever its length; foreign CPU includes that of a real API server and etcd; every log and every informer ended with the same keys and versions, %d of them", s.pods)
	addSync(b, s, t)
	return nil
}

func addSync(b *harness.Bench, s syncing, t harness.Table) {
	what := fmt.Sprintf("%d pods, %s", s.pods, s.what)
	f := harness.Compare("sync of "+what+", until the last delta is in the log", "s", t.Of("ours", "seconds"), "client-go informer, JSON", t.Of("json", "seconds"), harness.AtMost("ratio", 1))
	if proto := t.Of("protobuf", "seconds"); len(proto) > 0 {
		f = f.With("informer, protobuf", "s", proto)
	}
	b.Add(f)
	f = harness.Compare("CPU of the reflector, sync of "+what, "us/pod", t.Of("ours", "cpu"), "client-go informer, JSON", t.Of("json", "cpu"), nil)
	f = f.With("log's", "us/pod", t.Of("ours", "log"))
	if proto := t.Of("protobuf", "cpu"); len(proto) > 0 {
		f = f.With("informer, protobuf", "us/pod", proto)
	}
	b.Add(f)
	f = harness.Compare("memory held by the reflector per object, "+what, "B", t.Of("ours", "live"), "client-go informer, JSON", t.Of("json", "live"), harness.AtMost("ours", 250))
	b.Add(f.With("heap objects", "", t.Of("ours", "objects")).With("informer's", "", t.Of("json", "objects")))
	f = harness.Compare("peak RSS of the reflector, sync of "+what, "MB", t.Of("ours", "peak"), "client-go informer, JSON", t.Of("json", "peak"), nil)
	b.Add(f)
}

// syncOurs is one sync by a reflector into a new log.
func syncOurs(ctx context.Context, b *harness.Bench, s syncing, name string) (_ map[string]float64, err error) {
	log, url, err := system.StartLog(ctx, b, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, log.Stop(), os.RemoveAll(b.PathIn(name))) }()
	r, err := system.ReadyReflector(ctx, b, system.ReflectorConfig{NATS: url, URL: s.url, Kubeconfig: s.kubeconfig, Holder: "bench"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	conn, err := stream.Connect(ctx, stream.Config{URL: url})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	m, err := system.BeginMeasurement(b, r.Child, log, s.pods*harness.HeldPerPod)
	if err != nil {
		return nil, err
	}
	err = b.Profiled(r.Child, "sync-reflector", func() error {
		return b.Profiled(log, "sync-nats", func() error {
			if err := r.Start(); err != nil {
				return err
			}
			err := awaitRecords(ctx, conn, s.pods)
			m.Note("seconds", time.Since(m.Began).Seconds())
			return errors.Join(err, m.Synced())
		})
	})
	if err != nil {
		return nil, errors.Join(err, r.Await(ctx, "watching", system.Watching))
	}
	if err := errors.Join(r.Await(ctx, "watching", system.Watching), m.Settled(s.pods), b.HeapProfiled(r.Child, "sync-reflector")); err != nil {
		return nil, err
	}
	m.Note("log", m.Numbers["far"]*1e6/float64(s.pods))
	m.Note("cpu", m.Numbers["cpu"]*1e6/float64(s.pods))
	got, err := foldLog(ctx, url)
	if err != nil {
		return nil, err
	}
	if got.controls != controlRecords {
		return nil, fmt.Errorf("the log has %d control records, want %d: the end of the sync was not told right", got.controls, controlRecords)
	}
	if v := got.versions(); v != s.versions {
		return nil, fmt.Errorf("%w: keys and versions %s, want %s", errLogDiffers, v, s.versions)
	}
	if h := system.HashOf(got.state); s.hash != "" && h != s.hash {
		return nil, fmt.Errorf("%w: state hash %s, want %s", errLogDiffers, h, s.hash)
	}
	return m.Numbers, nil
}

// controlRecords are in every log with a complete list of one term: origin,
// fence, term, and synced, which comes last.
const controlRecords = 4

// awaitRecords returns when a log has the records of a list of n objects and its end.
func awaitRecords(ctx context.Context, conn *stream.Conn, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for there := uint64(0); ; {
		tail, err := conn.Tail(ctx, population.PodsCollection)
		if err == nil {
			there = tail.Messages
		}
		if there >= uint64(n+controlRecords) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%d records in the log, want %d: %w", there, n+controlRecords, ctx.Err()), err)
		case <-tick.C:
		}
	}
}

// syncPeer is one sync by an informer.
func syncPeer(ctx context.Context, b *harness.Bench, cfg jsonConfig, pods int) (_ map[string]float64, versions string, err error) {
	p, err := startPeers(ctx, b, cfg)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	m, err := system.BeginMeasurement(b, p.Child, p.Child, pods*harness.HeldPerPod)
	if err != nil {
		return nil, "", err
	}
	var took time.Duration
	if err := b.Profiled(p.Child, "sync-informer", func() error { return p.Call("load", nil, &took) }); err != nil {
		return nil, "", err
	}
	m.Note("seconds", took.Seconds())
	var all []string
	if err := errors.Join(m.Synced(), m.Settled(pods), p.Call("versions", nil, &all)); err != nil {
		return nil, "", err
	}
	m.Note("cpu", m.Numbers["cpu"]*1e6/float64(pods))
	return m.Numbers, all[0], nil
}
