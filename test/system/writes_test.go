package system

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	batchv1 "k8s.io/api/batch/v1"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// Anyone who writes to the API server and then asks any indexer for the resource version of the
// answer sees the write: while indexers are paused in turn, while the leading reflector is killed
// again and again, with a key that two writers change, with writes that change nothing, and with
// deletions.
func TestEveryWriteIsReadBack(t *testing.T) {
	t.Parallel()
	readBack(t, "", writeCount(t, 2000))
}

func TestEveryWriteToARealAPIServerIsReadBack(t *testing.T) {
	t.Parallel()
	kubeconfig := os.Getenv("DELTAPLANE_KUBECONFIG")
	if kubeconfig == "" {
		t.Skip("DELTAPLANE_KUBECONFIG is not set: `make kube` starts a real API server and prints one")
	}
	embeddedtest.Alone(t, kubeconfig)
	readBack(t, kubeconfig, writeCount(t, 4000))
}

// writeCount is how many writes are read back: so many, or what DELTAPLANE_WRITES says; 10,000 take
// two minutes on two busy cores.
func writeCount(t *testing.T, n int) int {
	if text := os.Getenv("DELTAPLANE_WRITES"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatalf("DELTAPLANE_WRITES: %v", err)
		}
	}
	return n
}

// ownWriters write keys of their own. Many of them keep the API server busy while some wait for a
// leader to be replaced; beyond that its processor time sets the pace.
const ownWriters = 24

func readBack(t *testing.T, kubeconfig string, writes int) {
	u := newUp(t, kubeconfig)
	second := embeddedtest.Ports(t, 1)[0]
	u.start(t, "up", append(u.upArgs(), "--skip", "reflector,indexer,controllers,nodes,gateway")...)
	u.start(t, "indexer", u.serveArgs("indexer")...)
	u.start(t, "indexer-2", append(u.serveArgs("indexer"), "--listen", second, "--admin-listen", "127.0.0.1:0")...)
	reflector := func(name string) []string {
		args := u.serveArgs("reflector")
		if name != "reflector" {
			args = append(args, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
		}
		return args
	}
	for _, name := range []string{"reflector", "reflector-2"} {
		u.start(t, name, reflector(name)...)
	}
	u.awaitStart(t, "indexer")
	x := u.target()
	testServed(t, x)

	if kubeconfig != "" {
		x.API = loadKubeconfig(t, kubeconfig)
	}
	w := &writers{api: x.API, total: int64(writes), prefix: fmt.Sprintf("write-%x", rand.Uint32())}
	for _, address := range []string{x.Index, second} {
		w.replicas = append(w.replicas, client.NewIndex(connect(t, address, x.Dial)))
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var trouble sync.WaitGroup
	indexers := u.running("indexer", "indexer-2")
	trouble.Go(func() { freeze(ctx, indexers, 700*time.Millisecond) })
	began := time.Now()
	group, gctx := errgroup.WithContext(t.Context())
	for i := range ownWriters {
		group.Go(func() error { return w.own(gctx, i) })
	}
	for i := range 2 {
		group.Go(func() error { return w.shared(gctx, i) })
	}
	written := make(chan error, 1)
	go func() { written <- group.Wait() }()
	for running := true; running; {
		select {
		case err := <-written:
			if err != nil {
				t.Error(err)
			}
			running = false
		case <-time.After(3*time.Second + rand.N(2*time.Second)):
			name := []string{"reflector", "reflector-2"}[w.kills.Load()%2] // whichever leads is met every other time
			u.stop(t, name, syscall.SIGKILL)
			u.start(t, name, reflector(name)...)
			w.kills.Add(1)
		}
	}
	stop()
	trouble.Wait()
	t.Logf("%d writes read back in %v, %d of them waited for more than a second, %d reads asked again; reflectors killed %d times",
		w.done.Load(), time.Since(began).Round(time.Millisecond), w.slow.Load(), w.again.Load(), w.kills.Load())
	if t.Failed() {
		return
	}
	w.quiet(t)
	checkConverged(t, x)
}

// testServed waits until the collections answer.
func testServed(t *testing.T, x *Target) {
	t.Helper()
	index := client.NewIndex(connect(t, x.Index, x.Dial))
	eventually(t, time.Minute, "the collections are served", func(ctx context.Context) error {
		for _, m := range mirrored {
			if _, _, err := index.List(ctx, m.collection, client.ListOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
}

// writers write Jobs, which nobody else touches: they are suspended and no controller runs.
type writers struct {
	api      *API
	replicas []*client.Index
	prefix   string
	total    int64

	done, slow, again, turn, kills atomic.Int64
	last                           atomic.Pointer[batchv1.Job]
}

// more reports whether the writers are to go on: on a quick machine they would be done before both
// reflectors were killed, one of which leads.
func (w *writers) more() bool { return w.done.Load() < w.total || w.kills.Load() < 2 }

// find reads a Job on one of the replicas, at the version of what the writer got. A replica that is
// paused, or that cannot come there in time, is asked again: late is not stale.
func (w *writers) find(ctx context.Context, name, version string) (*batchv1.Job, error) {
	began := time.Now()
	defer func() {
		if time.Since(began) > time.Second {
			w.slow.Add(1)
		}
	}()
	for {
		replica := w.replicas[int(w.turn.Add(1))%len(w.replicas)]
		obj, _, err := replica.Find(ctx, "jobs", "default/"+name, client.ReadOptions{
			AtLeast: client.Revision{RV: version}, Timeout: 10 * time.Second,
		})
		switch code := rpc.Code(err); {
		case err == nil && obj == nil:
			return nil, nil
		case err == nil:
			w.done.Add(1)
			got := &batchv1.Job{}
			if err := json.Unmarshal(obj.Payload, got); err != nil {
				return nil, err
			}
			return got, nil
		case code != codes.Unavailable && code != codes.DeadlineExceeded:
			return nil, fmt.Errorf("read %s at %s: %w", name, version, err)
		case time.Since(began) > time.Minute:
			return nil, fmt.Errorf("read %s at %s: not within a minute: %w", name, version, err)
		}
		w.again.Add(1)
	}
}

// own works on keys of its own: what it wrote last is what it must read.
func (w *writers) own(ctx context.Context, id int) error {
	for n := 0; w.more(); n++ {
		job := jobOf(fmt.Sprintf("%s-%d-%d", w.prefix, id, n), nil, func(s *batchv1.JobSpec) { s.Suspend = new(true) })
		if err := w.api.create(ctx, jobsPath, job, job); err != nil {
			return err
		}
		if err := w.check(ctx, job, ""); err != nil {
			return err
		}
		const changes = 4
		for i := range changes {
			mark := strconv.Itoa(i / 2) // every other write changes nothing
			if err := w.patch(ctx, job.Name, "mark", mark, job); err != nil {
				return err
			}
			if err := w.check(ctx, job, mark); err != nil {
				return err
			}
		}
		if err := w.api.delete(ctx, jobsPath+"/"+job.Name, "Background"); err != nil {
			return err
		}
		// The answer to a deletion names no version; any write after it does.
		after := jobOf(fmt.Sprintf("%s-%d-after", w.prefix, id), nil, func(s *batchv1.JobSpec) { s.Suspend = new(true) })
		if n == 0 {
			if err := w.api.create(ctx, jobsPath, after, after); err != nil {
				return err
			}
		} else if err := w.patch(ctx, after.Name, "n", strconv.Itoa(n), after); err != nil {
			return err
		}
		w.last.Store(after)
		w.done.Add(1)
		switch gone, err := w.find(ctx, job.Name, after.ResourceVersion); {
		case err != nil:
			return err
		case gone != nil:
			return fmt.Errorf("%s was deleted before %s and is read there, in version %s", job.Name, after.ResourceVersion, gone.ResourceVersion)
		}
	}
	return nil
}

// shared changes a key that the other writers change too; each has an annotation of its own on it.
func (w *writers) shared(ctx context.Context, id int) error {
	hot := jobOf(w.prefix+"-hot", nil, func(s *batchv1.JobSpec) { s.Suspend = new(true) })
	if err := w.api.create(ctx, jobsPath, hot, hot); err != nil && !isStatus(err, http.StatusConflict) {
		return err
	}
	mine := "writer-" + strconv.Itoa(id)
	for n := 0; w.more(); n++ {
		if err := w.patch(ctx, hot.Name, mine, strconv.Itoa(n), hot); err != nil {
			return err
		}
		got, err := w.find(ctx, hot.Name, hot.ResourceVersion)
		if err != nil {
			return err
		}
		if got == nil || got.Annotations[mine] != strconv.Itoa(n) {
			return fmt.Errorf("%s wrote %d at %s and reads %+v", mine, n, hot.ResourceVersion, got)
		}
	}
	return nil
}

func (w *writers) patch(ctx context.Context, name, annotation, value string, into *batchv1.Job) error {
	return w.api.do(ctx, http.MethodPatch, jobsPath+"/"+name, "application/merge-patch+json",
		map[string]any{"metadata": map[string]any{"annotations": map[string]string{annotation: value}}}, into)
}

// check reads a Job at the version its writer got.
func (w *writers) check(ctx context.Context, job *batchv1.Job, mark string) error {
	got, err := w.find(ctx, job.Name, job.ResourceVersion)
	if err != nil {
		return err
	}
	if got == nil || got.ResourceVersion != job.ResourceVersion || got.UID != job.UID || got.Annotations["mark"] != mark {
		return fmt.Errorf("%s was written in version %s with mark %q and is read as %+v", job.Name, job.ResourceVersion, mark, got)
	}
	return nil
}

// quiet checks that collections in which nothing happens come to the versions of others, by
// progress records.
func (w *writers) quiet(t *testing.T) {
	t.Helper()
	version := w.last.Load().ResourceVersion
	eventually(t, 3*time.Minute, "the quiet collection of leases is at version "+version, func(ctx context.Context) error {
		_, _, err := w.replicas[0].List(ctx, "leases", client.ListOptions{ReadOptions: client.ReadOptions{
			AtLeast: client.Revision{RV: version}, Timeout: 20 * time.Second,
		}})
		return err
	})
}
