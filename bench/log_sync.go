package main

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

	"github.com/deltaplane/deltaplane/internal/stream"
)

// logSync measures how long it takes to bring the pods of an API server into the
// log, up to the last of them, beside the sync of client-go informers. Every
// turn begins with nothing, each part in a process of its own.
func logSync(ctx context.Context, b *bench) error {
	if b.quick {
		b.leaveOut("20,000 and 100,000 pods on a real API server", "--quick; 9,990 of a scripted one instead")
		return scriptedSync(ctx, b, 9990)
	}
	err := clusterSyncs(ctx, b)
	if errors.Is(err, errNoCluster) {
		b.leaveOut("sync from a real API server", err.Error()+"; from a scripted one instead")
		return errors.Join(scriptedSync(ctx, b, 20_010), scriptedSync(ctx, b, 100_020))
	}
	return err
}

// scriptedSync syncs from an API server whose answers cost it next to nothing.
func scriptedSync(ctx context.Context, b *bench, pods int) (err error) {
	s, err := startScript(ctx, b, "sync", scriptConfig{Pods: pods, Templates: pick(b, 500, 600), Managed: true, Streams: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	b.note("sync: %d pods, seed %d, %d bytes each in JSON as sent, %d as published", pods, b.seed, s.FullMean, s.BareMean)
	var versions, hash string
	if err := errors.Join(s.call("versions", nil, &versions), s.call("hash", nil, &hash)); err != nil {
		return err
	}
	return syncOnce(ctx, b, syncing{what: "scripted API server", pods: pods, url: s.URL, versions: versions, hash: hash})
}

// clusterSyncs syncs from a real API server, first with 20,000 pods, then with 100,000.
func clusterSyncs(ctx context.Context, b *bench) (err error) {
	c, err := bareCluster(ctx, b, filepath.Join(b.dir, "kube"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.down()) }()
	total := 0
	for round, pods := range []int{20_010, 80_010} {
		if err := seedManaged(ctx, b, c, b.seed+uint64(round), pods); err != nil {
			return err
		}
		total += pods
		if err := syncOnce(ctx, b, syncing{what: "real API server", pods: total, kubeconfig: c.kubeconfig()}); err != nil {
			return err
		}
	}
	return nil
}

// seedManaged writes pods with managed fields to the etcd of a cluster.
func seedManaged(ctx context.Context, b *bench, c *testCluster, seed uint64, pods int) (err error) {
	file, err := os.Create(b.pathIn("seed.jsonl"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(file.Name())) }()
	size, err := writeManaged(file, seed, pods)
	if err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	b.say("  writing %d pods to etcd", pods)
	b.note("sync: %d pods of 600 templates, seed %d, %d bytes each in JSON", pods, seed, size/pods)
	return c.feed(ctx, file, "seed")
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
func syncOnce(ctx context.Context, b *bench, s syncing) error {
	n := 0
	peer := func(name string, protobuf bool) side {
		return side{name, func(ctx context.Context, _ time.Duration) (map[string]float64, error) {
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
	sides := []side{peer("json", false), {"ours", func(ctx context.Context, _ time.Duration) (map[string]float64, error) {
		n++
		return syncOurs(ctx, b, s, fmt.Sprintf("sync-%d-%d", s.pods, n))
	}}}
	if s.kubeconfig != "" {
		sides = append(sides, peer("protobuf", true))
	}
	many := s.pods > 50_000 // what there is to warm up is warm by then
	rounds := pick(b, 1, 3)
	if many {
		rounds = 2
	}
	t, err := interleave(ctx, b, plan{what: fmt.Sprintf("sync, %d pods", s.pods), rounds: rounds, cold: b.quick || many, turn: time.Second}, sides...)
	if err != nil {
		return err
	}
	b.note("sync: a turn is one sync, whatever its length; foreign CPU includes that of a real API server and etcd; every log and every informer ended with the same keys and versions, %d of them", s.pods)
	addSync(b, s, t)
	return nil
}

func addSync(b *bench, s syncing, t table) {
	what := fmt.Sprintf("%d pods, %s", s.pods, s.what)
	f := compare("sync of "+what+", until the last delta is in the log", "s", t.of("ours", "seconds"), "client-go informer, JSON", t.of("json", "seconds"), atMost("ratio", 1))
	if proto := t.of("protobuf", "seconds"); len(proto) > 0 {
		f = f.with("informer, protobuf", "s", proto)
	}
	b.add(f)
	f = compare("CPU of the reflector, sync of "+what, "us/pod", t.of("ours", "cpu"), "client-go informer, JSON", t.of("json", "cpu"), nil)
	f = f.with("log's", "us/pod", t.of("ours", "log"))
	if proto := t.of("protobuf", "cpu"); len(proto) > 0 {
		f = f.with("informer, protobuf", "us/pod", proto)
	}
	b.add(f)
	f = compare("memory held by the reflector per object, "+what, "B", t.of("ours", "live"), "client-go informer, JSON", t.of("json", "live"), atMost("ours", 250))
	b.add(f.with("heap objects", "", t.of("ours", "objects")).with("informer's", "", t.of("json", "objects")))
	f = compare("peak RSS of the reflector, sync of "+what, "MB", t.of("ours", "peak"), "client-go informer, JSON", t.of("json", "peak"), nil)
	b.add(f)
}

// syncOurs is one sync by a reflector into a new log.
func syncOurs(ctx context.Context, b *bench, s syncing, name string) (_ map[string]float64, err error) {
	log, url, err := startLog(ctx, b, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, log.stop(), os.RemoveAll(b.pathIn(name))) }()
	r, err := readyReflector(ctx, b, reflectorConfig{NATS: url, URL: s.url, Kubeconfig: s.kubeconfig, Holder: "bench"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	conn, err := stream.Connect(ctx, stream.Config{URL: url})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	m, err := beginMeasurement(b, r.child, log, s.pods*heldPerPod)
	if err != nil {
		return nil, err
	}
	err = b.profiled(r.child, "sync-reflector", func() error {
		return b.profiled(log, "sync-nats", func() error {
			if err := r.start(); err != nil {
				return err
			}
			err := awaitRecords(ctx, conn, s.pods)
			m.note("seconds", time.Since(m.began).Seconds())
			return errors.Join(err, m.synced())
		})
	})
	if err != nil {
		return nil, errors.Join(err, r.await(ctx, "watching", watching))
	}
	if err := errors.Join(r.await(ctx, "watching", watching), m.settled(s.pods), b.heapProfiled(r.child, "sync-reflector")); err != nil {
		return nil, err
	}
	m.note("log", m.numbers["far"]*1e6/float64(s.pods))
	m.note("cpu", m.numbers["cpu"]*1e6/float64(s.pods))
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
	if h := hashOf(got.state); s.hash != "" && h != s.hash {
		return nil, fmt.Errorf("%w: state hash %s, want %s", errLogDiffers, h, s.hash)
	}
	return m.numbers, nil
}

// controlRecords are in every log with a complete list of one reign: origin,
// fence, term, and synced, which comes last.
const controlRecords = 4

// awaitRecords returns when a log has the records of a list of n objects and its end.
func awaitRecords(ctx context.Context, conn *stream.Conn, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for there := uint64(0); ; {
		tail, err := conn.Tail(ctx, podsCollection)
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
func syncPeer(ctx context.Context, b *bench, cfg jsonConfig, pods int) (_ map[string]float64, versions string, err error) {
	p, err := startPeers(ctx, b, cfg)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	m, err := beginMeasurement(b, p.child, p.child, pods*heldPerPod)
	if err != nil {
		return nil, "", err
	}
	var took time.Duration
	if err := b.profiled(p.child, "sync-informer", func() error { return p.call("load", nil, &took) }); err != nil {
		return nil, "", err
	}
	m.note("seconds", took.Seconds())
	var all []string
	if err := errors.Join(m.synced(), m.settled(pods), p.call("versions", nil, &all)); err != nil {
		return nil, "", err
	}
	m.note("cpu", m.numbers["cpu"]*1e6/float64(pods))
	return m.numbers, all[0], nil
}
