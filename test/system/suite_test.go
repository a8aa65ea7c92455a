package system

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// runSuite is the whole suite, in an order that leaves the target usable for the next part.
func runSuite(t *testing.T, x *Target) {
	t.Run("the flow is up", func(t *testing.T) { testFlow(t, x) })
	t.Run("jobs", func(t *testing.T) { testJobs(t, x) })
	services := []string{"reflector", "indexer", "queue", "controllers"}
	if x.Nodes {
		services = append(services, "nodes")
	}
	for _, service := range services {
		t.Run("a restart of "+service+" in the middle loses nothing", func(t *testing.T) { testRestart(t, x, service) })
	}
	if x.Kill != nil {
		t.Run("kill -9 with many queued Jobs loses nothing", func(t *testing.T) { testKill(t, x) })
	}
	t.Run("every index equals the API server at the end", func(t *testing.T) { checkConverged(t, x) })
	t.Run("the queue is empty at the end", func(t *testing.T) { testQueueDrained(t, x) })
}

// awaitServed waits until the index serves every collection.
func awaitServed(t *testing.T, x *Target) {
	t.Helper()
	eventually(t, 2*time.Minute, "every collection is served", func(ctx context.Context) error {
		collections, err := x.index(t).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
		if err != nil {
			return err
		}
		synced := map[string]bool{}
		for _, c := range collections.GetCollections() {
			synced[c.GetResource()] = c.GetSynced() && !c.GetStale()
		}
		for _, m := range mirrored {
			if !synced[m.collection] {
				return fmt.Errorf("%s is not served: %v", m.collection, collections)
			}
		}
		return nil
	})
}

func testFlow(t *testing.T, x *Target) {
	awaitServed(t, x)
	reflections, err := x.reflector(t).ListReflections(t.Context(), &reflectorv1.ListReflectionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range reflections.GetReflections() {
		if r.GetRevision().GetEpoch() == 0 || r.GetRevision().GetResourceVersion() == "" {
			t.Errorf("%s: revision is %v", r.GetCollection(), r.GetRevision())
		}
	}
	// The controllers make their queue when their log is read, which may be a moment later.
	eventually(t, 30*time.Second, "the controllers' queue", func(ctx context.Context) error {
		queues, err := x.queues(t).ListQueues(ctx, &queuev1.ListQueuesRequest{})
		if err == nil && (len(queues.GetQueues()) == 0 || queues.GetGeneration() == "") {
			err = fmt.Errorf("queues are %v", queues)
		}
		return err
	})
}

// burst creates n small Jobs, a few at a time.
func burst(t *testing.T, x *Target, prefix string, n int) []*batchv1.Job {
	t.Helper()
	jobs := make([]*batchv1.Job, n)
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	for i := range jobs {
		jobs[i] = &batchv1.Job{}
		group.Go(func() error {
			return x.API.create(ctx, jobsPath, jobOf(prefix+"-"+strconv.Itoa(i), map[string]string{runSeconds: "1"}, nil), jobs[i])
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatalf("create %d Jobs: %v", n, err)
	}
	return jobs
}

// remove deletes Jobs with their pods.
func remove(t *testing.T, x *Target, jobs []*batchv1.Job) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	for _, job := range jobs {
		group.Go(func() error { return x.API.delete(ctx, jobsPath+"/"+job.Name, "Background") })
	}
	if err := group.Wait(); err != nil {
		t.Fatalf("delete Jobs: %v", err)
	}
}

// checkAllComplete waits until every Job is complete with exactly one pod that succeeded.
func checkAllComplete(t *testing.T, x *Target, jobs []*batchv1.Job, limit time.Duration) {
	t.Helper()
	eventually(t, limit, fmt.Sprintf("%d Jobs complete", len(jobs)), func(ctx context.Context) error {
		var all batchv1.JobList
		if err := x.API.get(ctx, jobsPath, &all); err != nil {
			return err
		}
		complete := map[string]bool{}
		for _, job := range all.Items {
			for _, c := range job.Status.Conditions {
				if c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue {
					complete[job.Name] = true
				}
			}
		}
		missing := 0
		example := ""
		for _, job := range jobs {
			if !complete[job.Name] {
				missing++
				example = job.Name
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d are not, %s among them", missing, example)
		}
		return nil
	})
	checkOnePod(t, x, jobs)
}

func testRestart(t *testing.T, x *Target, service string) {
	first := burst(t, x, "before-"+service, 10)
	x.Restart(t, service)
	jobs := slices.Concat(first, burst(t, x, "after-"+service, 10))
	checkAllComplete(t, x, jobs, 2*time.Minute)
	remove(t, x, jobs)
}

// killJobs is how many Jobs wait when everything is killed; DELTAPLANE_KILL_JOBS changes it.
func killJobs(t *testing.T, x *Target) int {
	n := cmp.Or(x.KillJobs, 1000)
	if text := os.Getenv("DELTAPLANE_KILL_JOBS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatalf("DELTAPLANE_KILL_JOBS: %v", err)
		}
	}
	return n
}

func testKill(t *testing.T, x *Target) {
	jobs := burst(t, x, "kill", killJobs(t, x))
	x.Kill(t)
	checkAllComplete(t, x, jobs, 5*time.Minute)
	remove(t, x, jobs)
}

func testQueueDrained(t *testing.T, x *Target) {
	client := x.queues(t)
	eventually(t, 2*time.Minute, "no key is ready or held", func(ctx context.Context) error {
		queues, err := client.ListQueues(ctx, &queuev1.ListQueuesRequest{})
		if err != nil {
			return err
		}
		for _, q := range queues.GetQueues() {
			if c := q.GetCounts(); c.GetReady() > 0 || c.GetProcessing() > 0 || c.GetDead() > 0 {
				return fmt.Errorf("%s holds %v", q.GetConfig().GetName(), c)
			}
		}
		return nil
	})
}
