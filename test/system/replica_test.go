package system

import (
	"context"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
)

// Two controller replicas share the queue. Each is stopped (SIGSTOP) for longer than its lease at
// moments that fall anywhere in its work, also between its read and its create, and continued.
func TestTwoReplicasNeverCreateAPodTooMany(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	u := newUp(t, "")
	u.apart = "controllers"
	u.start(t, "up", u.upArgs()...)
	replicas := []string{"controllers", "controllers-2"}
	for _, name := range replicas {
		args := append(u.serveArgs("controllers"), "--lease", lease.String(), "--identity", name)
		if name != "controllers" {
			args = append(args, "--admin-listen", "127.0.0.1:0")
		}
		u.start(t, name, args...)
	}
	u.awaitStart(t, "controllers")
	x := u.target()
	testFlow(t, x)

	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	processes := u.running(replicas...)
	go func() {
		defer close(stopped)
		freeze(ctx, processes, 2*lease)
	}()
	var jobs []*batchv1.Job
	for _, prefix := range []string{"a", "b", "c", "d"} {
		jobs = append(jobs, burst(t, x, "frozen-"+prefix, 10)...)
	}
	wide := createJob(t, x, jobOf("frozen-wide", nil, func(s *batchv1.JobSpec) {
		s.Parallelism, s.Completions = new(int32(10)), new(int32(40))
	}))
	checkAllComplete(t, x, jobs, 3*time.Minute)
	done := waitCondition(t, x, wide.Name, batchv1.JobComplete, "", 3*time.Minute)
	stop()
	<-stopped
	pods, err := podsOf(t.Context(), x, wide)
	if err != nil {
		t.Fatal(err)
	}
	if len(pods) != 40 || done.Status.Succeeded != 40 || done.Status.Failed != 0 {
		t.Errorf("%d pods exist, status %+v; want exactly 40 pods, all succeeded", len(pods), done.Status)
	}
	checkNoFinalizers(t, x, wide)
	checkConverged(t, x)
}

// running returns processes by name.
func (u *upTarget) running(names ...string) []*os.Process {
	var list []*os.Process
	for _, name := range names {
		list = append(list, u.processes[name].cmd.Process)
	}
	return list
}

// freeze stops one process after another for a while until ctx ends, and leaves all of them
// running.
func freeze(ctx context.Context, processes []*os.Process, pause time.Duration) {
	for i := 0; ctx.Err() == nil; i++ {
		process := processes[i%len(processes)]
		select {
		case <-ctx.Done():
			return
		case <-time.After(rand.N(400 * time.Millisecond)):
		}
		_ = process.Signal(syscall.SIGSTOP)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		_ = process.Signal(syscall.SIGCONT)
	}
}
