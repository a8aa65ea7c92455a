package system

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// soakRate is how often a Job is made. One of four runs until it is deleted, the others are deleted
// when they are complete.
const soakRate = 500 * time.Millisecond

// soakLoad makes Jobs at a steady rate, judges each and deletes it.
type soakLoad struct {
	t       *testing.T
	x       *Target
	indexes []indexv1.IndexServiceClient
	queues  queuev1.QueueAdminServiceClient
	making  context.CancelFunc
	ending  context.CancelFunc
	makes   sync.WaitGroup
	others  sync.WaitGroup

	mu       sync.Mutex // guards what follows
	open     map[string]*soakJob
	pods     map[types.UID]map[types.UID]string // every pod ever seen, by its Job
	made     int
	complete int
	deleted  int
	keys     int64
	lag      int64         // the worst of an index since the last line, in records
	silence  time.Duration // the longest since an index had last heard of the API server, likewise
	age      time.Duration // the worst of a Job that was not at its end yet, since the last line
}

type soakJob struct {
	made    time.Time
	uid     types.UID
	endless bool
	asked   bool // to be deleted; the load's own
}

// load begins to make Jobs.
func (s *soak) load(x *Target) *soakLoad {
	s.t.Helper()
	l := &soakLoad{
		t: s.t, x: x, open: map[string]*soakJob{}, pods: map[types.UID]map[types.UID]string{}, queues: s.sees("indexer", "queue").queues(s.t),
		indexes: []indexv1.IndexServiceClient{s.sees("indexer", "queue").index(s.t), s.sees("indexer-2", "queue").index(s.t)},
	}
	var making, running context.Context
	making, l.making = context.WithCancel(s.t.Context())
	running, l.ending = context.WithCancel(s.t.Context())
	l.makes.Go(func() { l.make(making) })
	l.others.Go(func() { l.watch(running) })
	l.others.Go(func() {
		for tick := time.NewTicker(time.Second); running.Err() == nil; <-tick.C {
			l.review(running)
			l.look(running)
		}
	})
	s.t.Cleanup(l.end)
	return l
}

func (l *soakLoad) end() {
	l.making()
	l.ending()
	l.makes.Wait()
	l.others.Wait()
}

// make makes Jobs, each until the API server has said that it is there.
func (l *soakLoad) make(ctx context.Context) {
	tick := time.NewTicker(soakRate)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("soak-%d", i)
		j := &soakJob{made: time.Now(), endless: i%4 == 3}
		seconds := "1"
		if j.endless {
			seconds = forever
		}
		created := &batchv1.Job{}
		for all := l.t.Context(); ; { // what was begun is ended
			err := l.x.API.create(all, jobsPath, jobOf(name, map[string]string{runSeconds: seconds}, nil), created)
			if isStatus(err, http.StatusConflict) { // it was made, and the answer was lost
				err = l.x.API.get(all, jobsPath+"/"+name, created)
			}
			if err == nil {
				break
			}
			select {
			case <-all.Done():
				return
			case <-tick.C:
			}
		}
		j.uid = created.UID
		l.mu.Lock()
		l.open[name] = j
		l.made++
		l.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// watch sees every pod, over the ends of watches.
func (l *soakLoad) watch(ctx context.Context) {
	for ctx.Err() == nil {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, l.x.API.Base+podsPath+"?watch=true", nil)
		if err != nil {
			l.t.Error(err)
			return
		}
		answer, err := l.x.API.Client.Do(request)
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		for events := json.NewDecoder(answer.Body); ; {
			var e struct{ Object corev1.Pod }
			if events.Decode(&e) != nil {
				break
			}
			l.see(&e.Object)
		}
		_ = answer.Body.Close()
	}
}

func (l *soakLoad) see(p *corev1.Pod) {
	uid := types.UID(p.Labels[batchv1.ControllerUidLabel])
	if uid == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pods[uid] == nil {
		l.pods[uid] = map[types.UID]string{}
	}
	l.pods[uid][p.UID] = fmt.Sprintf("%s on %s (%s)", p.Name, p.Spec.NodeName, p.UID)
}

// review judges the Jobs that have come to their end, and deletes them.
func (l *soakLoad) review(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	l.mu.Lock()
	open := maps.Clone(l.open)
	l.mu.Unlock()
	var jobs batchv1.JobList
	var pods corev1.PodList
	if l.x.API.get(ctx, jobsPath, &jobs) != nil || l.x.API.get(ctx, podsPath, &pods) != nil {
		return // the API server is away
	}
	for i := range pods.Items {
		l.see(&pods.Items[i])
	}
	there := map[types.UID]*batchv1.Job{}
	for i := range jobs.Items {
		there[jobs.Items[i].UID] = &jobs.Items[i]
	}
	for name, j := range open {
		job := there[j.uid]
		if job == nil {
			if !j.asked {
				l.t.Errorf("Job %s is gone, and nobody has deleted it", name)
			}
			l.gone(name, j)
			continue
		}
		l.mu.Lock()
		l.age = max(l.age, time.Since(j.made))
		seen := slices.Collect(maps.Values(l.pods[j.uid]))
		l.mu.Unlock()
		if len(seen) > 1 || job.Status.Failed > 0 {
			l.t.Errorf("Job %s has had the pods %v, and its status is %+v; want one pod, that does not fail", name, seen, job.Status)
		}
		switch complete := isComplete(job); {
		case complete && (job.Status.Succeeded != 1 || len(seen) != 1):
			l.t.Errorf("Job %s is complete with %d succeeded and the pods %v, want exactly one", name, job.Status.Succeeded, seen)
		case !complete && (!j.endless || job.Status.Active == 0):
			continue
		}
		j.asked = true
		if err := l.x.API.delete(ctx, jobsPath+"/"+name, "Background"); err == nil || isStatus(err, http.StatusNotFound) {
			l.gone(name, j)
		}
	}
}

func isComplete(job *batchv1.Job) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue
	})
}

func (l *soakLoad) gone(name string, j *soakJob) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, name)
	if j.endless {
		l.deleted++
	} else {
		l.complete++
	}
}

// look looks at lags and queues, where they answer.
func (l *soakLoad) look(ctx context.Context) {
	lag, keys, silence := int64(0), int64(-1), time.Duration(0)
	var asked sync.WaitGroup
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answers := make([]*indexv1.ListCollectionsResponse, len(l.indexes))
	for i, index := range l.indexes {
		asked.Go(func() { answers[i], _ = index.ListCollections(ctx, &indexv1.ListCollectionsRequest{}) })
	}
	if all, err := l.queues.ListQueues(ctx, &queuev1.ListQueuesRequest{}); err == nil {
		keys = 0
		for _, q := range all.GetQueues() {
			keys += q.GetCounts().GetReady() + q.GetCounts().GetProcessing()
		}
	}
	asked.Wait()
	for _, all := range answers {
		for _, c := range all.GetCollections() {
			lag = max(lag, c.GetLagRecords())
			if c.GetSynced() {
				silence = max(silence, time.Since(c.GetLiveAt().AsTime()))
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lag, l.silence = max(l.lag, lag), max(l.silence, silence)
	if keys >= 0 {
		l.keys = keys
	}
}

// String tells of the time since it was called last.
func (l *soakLoad) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := fmt.Sprintf("Jobs: %d made, %d complete, %d deleted while they ran, %d open, the oldest was %.1f s old; %d keys in queues; "+
		"an index was at worst %d records behind and %.1f s old",
		l.made, l.complete, l.deleted, len(l.open), l.age.Seconds(), l.keys, l.lag, l.silence.Seconds())
	l.age, l.lag, l.silence = 0, 0, 0
	return text
}

// settle lets the work go on for a while, so that processes are warm.
func (l *soakLoad) settle(span time.Duration) {
	l.t.Helper()
	select {
	case <-time.After(span):
	case <-l.t.Context().Done():
	}
	l.t.Logf("warm: %s", l)
}

// finish makes no more Jobs, and waits for those that there are.
func (l *soakLoad) finish() {
	l.t.Helper()
	l.making()
	l.makes.Wait()
	eventually(l.t, 5*time.Minute, "every Job comes to its end", func(context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.open) > 0 {
			return fmt.Errorf("these do not: %v", slices.Sorted(maps.Keys(l.open)))
		}
		return nil
	})
	l.end()
}

// nothingLeft waits until there is neither a Job nor a pod.
func (l *soakLoad) nothingLeft() {
	l.t.Helper()
	eventually(l.t, 2*time.Minute, "neither a Job nor a pod is left", func(ctx context.Context) error {
		var jobs batchv1.JobList
		var pods corev1.PodList
		if err := l.x.API.get(ctx, jobsPath, &jobs); err != nil {
			return err
		}
		if err := l.x.API.get(ctx, podsPath, &pods); err != nil {
			return err
		}
		var left []string
		for _, j := range jobs.Items {
			left = append(left, "Job "+j.Name)
		}
		for _, p := range pods.Items {
			left = append(left, fmt.Sprintf("pod %s (finalizers %v, deleted %v)", p.Name, p.Finalizers, p.DeletionTimestamp))
		}
		if len(left) > 0 {
			return fmt.Errorf("left are %s", strings.Join(left, ", "))
		}
		return nil
	})
}
