package job_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/services/controllers/job"
)

// told is an index that answers what it was given.
type told struct {
	job, pod []byte
}

func (f told) Job(context.Context, string, string) ([]byte, delta.Revision, error) {
	return f.job, revision(1), nil
}

func (f told) OwnedPods(context.Context, string, types.UID) ([][]byte, delta.Revision, error) {
	return [][]byte{f.pod}, revision(1), nil
}

func (f told) PodKeys(context.Context, string, string) ([]string, delta.Revision, error) {
	return []string{"p"}, revision(1), nil
}

func (f told) Pods(context.Context, string, []string) ([][]byte, delta.Revision, error) {
	return [][]byte{f.pod}, revision(1), nil
}

// Whatever an index, the queue's store or an expectation says, a sync ends
// without a panic and without a write that a server would refuse.
func FuzzReconcile(f *testing.F) {
	w := newWorld(func() time.Time { return epoch })
	j := newJob(w, 2, 3, 1)
	w.putJob(j)
	p := w.addPod(j, inPhase(corev1.PodFailed))
	jobRaw, err := json.Marshal(j)
	if err != nil {
		f.Fatal(err)
	}
	podRaw, err := json.Marshal(p)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(jobRaw, podRaw, []byte(`{"u":"uid-1","n":3,"c":[{"f":0,"t":1,"w":7}]}`), "work-x-1", "finalizer:uid-2")
	f.Add([]byte(`{}`), []byte(`[]`), []byte(`{"n":-1}`), "", "")
	f.Add([]byte(`{"spec":{"selector":{"matchLabels":{"a":"b"}},"parallelism":-5,"completions":-1}}`), []byte(`null`), []byte(`x`), "work--9223372036854775807", "")
	f.Fuzz(func(t *testing.T, jobRaw, podRaw, state []byte, creation, deletion string) {
		world := newWorld(func() time.Time { return epoch })
		r, err := job.New(job.Config{Now: func() time.Time { return epoch }}, world, &recorder{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		lease := &keptLease{state: state}
		res := r.Reconcile(t.Context(), job.Request{
			Key: "default/work", Token: 1, Attempt: 1, State: state, Reader: told{jobRaw, podRaw}, Lease: lease,
			Expected: job.Expected{Owner: "uid-1", Creations: []string{creation}, Deletions: []string{deletion}},
		})
		if res.Settle == job.Lost || len(world.violations) > 0 || len(lease.state) > 4096 {
			t.Errorf("settled %v, %v; %v; %d bytes of state", res.Settle, res.Err, world.violations, len(lease.state))
		}
	})
}
