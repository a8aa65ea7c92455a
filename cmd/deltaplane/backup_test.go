package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// plane is a reflector, an indexer and a queue server on a NATS and a Redis of their own, of which
// nothing is left when the test that started it ends.
type plane struct {
	ask       []string
	admin     queuev1.QueueAdminServiceClient
	queue     queuev1.QueueServiceClient
	index     indexv1.IndexServiceClient
	reflector reflectorv1.ReflectorServiceClient
}

func startPlane(t *testing.T, api string) *plane {
	t.Helper()
	nats, redis := embeddedtest.NATS(t), embeddedtest.Redis(t)
	reflector := startServing(t, "serve", "reflector", "--nats-url", nats.URL(), "--api-url", api)
	indexer := startServing(t, "serve", "indexer", "--nats-url", nats.URL())
	queue := startServing(t, "serve", "queue", "--redis-url", "redis://"+redis.Addr())
	for _, s := range []*serving{reflector, indexer, queue} {
		until(t, func() bool { code, _ := s.readyz(t); return code == 200 && s.healthy(t) })
	}
	dial := func(addr string) *grpc.ClientConn {
		conn, err := rpc.Dial(addr, rpc.DialConfig{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	q := dial(queue.listen)
	return &plane{
		[]string{"--reflector-url", reflector.listen, "--index-url", indexer.listen, "--queue-url", queue.listen},
		queuev1.NewQueueAdminServiceClient(q), queuev1.NewQueueServiceClient(q),
		indexv1.NewIndexServiceClient(dial(indexer.listen)), reflectorv1.NewReflectorServiceClient(dial(reflector.listen)),
	}
}

func (p *plane) run(t *testing.T, want int, args ...string) string {
	t.Helper()
	out, errs, code := command(t.Context(), "", append(args, p.ask...)...)
	if code != want {
		t.Fatalf("%v exited with %d, want %d: %s%s", args, code, want, out, errs)
	}
	return out + errs
}

// kept is what a backup has to bring back.
type kept struct {
	Added   []*reflectorv1.ReflectionSpec
	Indexes []*indexv1.Indexer
	Queues  []*queuev1.QueueStatus
	Items   []*queuev1.Item
}

func (p *plane) kept(t *testing.T) kept {
	t.Helper()
	reflections, err := p.reflector.ListReflections(t.Context(), &reflectorv1.ListReflectionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	indexes, err := p.index.ListIndexers(t.Context(), &indexv1.ListIndexersRequest{Collection: "*"})
	if err != nil {
		t.Fatal(err)
	}
	queues, err := p.admin.ListQueues(t.Context(), &queuev1.ListQueuesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	k := kept{Added: reflections.GetAdded(), Indexes: indexes.GetIndexers(), Queues: queues.GetQueues()}
	for _, q := range k.Queues {
		q.OldestReady, q.Activity = nil, nil
		list, err := p.admin.ListItems(t.Context(), &queuev1.ListItemsRequest{Queue: q.GetConfig().GetName(), WithState: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range list.GetItems() {
			if due := it.GetDelayedUntil(); due != nil {
				if left := time.Until(due.AsTime()); left < 30*time.Minute || left > time.Hour {
					t.Errorf("%s is due in %v, want an hour, less what the test took", it.GetKey(), left)
				}
			}
			it.AddedAt, it.ReadyAt, it.DelayedUntil = nil, nil, nil
			if e := it.GetExpectations(); e != nil {
				e.StoredAt = nil
			}
			k.Items = append(k.Items, it)
		}
	}
	slices.SortFunc(k.Items, func(a, b *queuev1.Item) int { return strings.Compare(a.GetKey(), b.GetKey()) })
	return k
}

// fill gives a plane something of everything that a backup keeps.
func (p *plane) fill(t *testing.T) {
	t.Helper()
	p.run(t, cli.ExitOK, "reflection", "add", "events", "--field-selector", "involvedObject.kind=Pod")
	until(t, func() bool {
		_, err := p.index.Count(t.Context(), &indexv1.CountRequest{Collection: "dev/nodes.v1"})
		return err == nil
	})
	p.run(t, cli.ExitOK, "index", "add", "dev/nodes.v1", "by-os", "--label", "kubernetes.io/os")
	p.run(t, cli.ExitOK, "index", "add", "*/widgets.v1.example.com", "by-app", "--label", "app") // that no cluster has yet
	const q = "dev/jobs"
	p.run(t, cli.ExitOK, "queue", "configure", q, "--partitions", "4", "--max-retries", "7")
	p.run(t, cli.ExitOK, "queue", "configure", "dev/empty")
	ctx := t.Context()
	barrier := []*deltav1.CollectionRevision{{Collection: "dev/pods.v1", Revision: &deltav1.Revision{Epoch: 3, ResourceVersion: "70"}}}
	add := func(it *queuev1.AddItem) {
		if _, err := p.queue.Add(ctx, &queuev1.AddRequest{Queue: q, Items: []*queuev1.AddItem{it}}); err != nil {
			t.Fatal(err)
		}
	}
	lease := func(key string) *queuev1.Lease {
		add(&queuev1.AddItem{Key: key, Priority: 3})
		got, err := p.queue.Get(ctx, &queuev1.GetRequest{Queue: q, SessionId: "s", MaxItems: 1})
		if err != nil || len(got.GetLeases()) != 1 || got.GetLeases()[0].GetKey() != key {
			t.Fatalf("Get = %v, %v", got, err)
		}
		l := got.GetLeases()[0]
		if _, err := p.queue.SaveState(ctx, &queuev1.SaveStateRequest{Queue: q, Key: key, Token: l.GetToken(), State: []byte("saved of " + key)}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.queue.Expect(ctx, &queuev1.ExpectRequest{Queue: q, Key: key, Token: l.GetToken(), OwnerUid: "u", Creations: []string{"child"}}); err != nil {
			t.Fatal(err)
		}
		return l
	}
	request := uint64(0)
	settle := func(l *queuev1.Lease, s *queuev1.Settlement) {
		request++
		s.Queue, s.Key, s.Token = q, l.GetKey(), l.GetToken()
		if _, err := p.queue.Settle(ctx, &queuev1.SettleRequest{SessionId: "s", RequestId: request, Settlements: []*queuev1.Settlement{s}}); err != nil {
			t.Fatal(err)
		}
	}
	settle(lease("dead"), &queuev1.Settlement{Outcome: queuev1.Outcome_OUTCOME_DEAD, Reason: "of no use"})
	settle(lease("later"), &queuev1.Settlement{Outcome: queuev1.Outcome_OUTCOME_RETRY_AFTER, Delay: durationpb.New(time.Hour)})
	settle(lease("idle"), &queuev1.Settlement{Outcome: queuev1.Outcome_OUTCOME_DONE})
	settle(lease("released"), &queuev1.Settlement{Outcome: queuev1.Outcome_OUTCOME_RELEASE})
	add(&queuev1.AddItem{Key: "ready", Priority: 2, Barrier: barrier})
	p.run(t, cli.ExitOK, "queue", "pause", q)
	p.run(t, cli.ExitOK, "queue", "close", "dev/empty")
}

func TestWhatABackupHasComesBackAfterNATSAndRedisWereLostWhole(t *testing.T) {
	t.Parallel()
	api := startUp(t).api[1]
	file := filepath.Join(t.TempDir(), "backup.json")
	var before kept
	t.Run("backup", func(t *testing.T) { // at the end NATS and Redis are gone
		p := startPlane(t, api)
		p.fill(t)
		before = p.kept(t)
		if out := p.run(t, cli.ExitOK, "backup", file); !strings.Contains(out, "1 reflections, 2 indexes, 2 queues, 5 keys") {
			t.Error(out)
		}
		if out := p.run(t, cli.ExitRefused, "restore", file); !strings.Contains(out, "--merge") || !strings.Contains(out, "queue dev/jobs holds 4 keys") {
			t.Error(out)
		}
		p.run(t, cli.ExitOK, "restore", file, "--merge") // what is there stays
		if diff := cmp.Diff(before, p.kept(t), protocmp.Transform()); diff != "" {
			t.Errorf("a restore over the same (-before +after):\n%s", diff)
		}
	})
	if t.Failed() {
		return
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info, err)
	}
	p := startPlane(t, api)
	if lost := p.kept(t); len(lost.Added)+len(lost.Indexes)+len(lost.Queues) > 0 {
		t.Fatalf("it was not lost: %v", lost)
	}
	if out := p.run(t, cli.ExitOK, "restore", file); !strings.Contains(out, "1 reflections, 2 indexes, 2 queues, 5 keys") {
		t.Error(out)
	}
	if diff := cmp.Diff(before, p.kept(t), protocmp.Transform()); diff != "" {
		t.Errorf("after the restore (-before +after):\n%s", diff)
	}
	p.run(t, cli.ExitOK, "queue", "resume", "dev/jobs")
	got, err := p.queue.Get(t.Context(), &queuev1.GetRequest{Queue: "dev/jobs", SessionId: "s", MaxItems: 10, Wait: durationpb.New(time.Minute)})
	if err != nil || len(got.GetLeases()) == 0 {
		t.Fatalf("Get = %v, %v", got, err)
	}
	for _, l := range got.GetLeases() {
		if l.GetKey() == "released" && string(l.GetState()) != "saved of released" {
			t.Errorf("a worker gets %v", l)
		}
	}
	// A key that a worker holds is not changed.
	held := got.GetLeases()[0].GetKey()
	if out := p.run(t, cli.ExitRefused, "restore", file, "--merge", "--wait", "1ms"); !strings.Contains(out, `key "`+held+`" of queue dev/jobs is leased`) {
		t.Error(out)
	}
}
