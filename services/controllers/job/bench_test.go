package job_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/controllers/job"
)

// BenchmarkSync is one sync of a Job whose 500 pods of about 6 KB run: nothing is
// to be written.
func BenchmarkSync(b *testing.B) {
	w := newWorld(func() time.Time { return epoch })
	j := newJob(w, 500, 1000, 6)
	w.putJob(j)
	filler := make([]corev1.EnvVar, 60)
	for i := range filler {
		filler[i] = corev1.EnvVar{Name: fmt.Sprintf("NAME_%d", i), Value: strings.Repeat("v", 60)}
	}
	for range 500 {
		w.addPod(j, inPhase(corev1.PodRunning), isReady, func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Name: "main", Image: "busybox", Env: filler}}
		})
	}
	r, err := job.New(job.Config{Now: func() time.Time { return epoch }}, w, &recorder{}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	lease := &keptLease{}
	v := &frozen{view: w.current()}
	req := job.Request{Key: "default/work", Token: 1, Attempt: 1, State: fmt.Appendf(nil, `{"u":%q}`, j.UID), Reader: v, Lease: lease}
	if res := r.Reconcile(b.Context(), req); res.Err != nil {
		b.Fatal(res.Err)
	}
	v.view = w.current()
	v.freeze()
	b.ReportAllocs()
	for b.Loop() {
		if res := r.Reconcile(b.Context(), req); res.Err != nil {
			b.Fatal(res.Err)
		}
	}
	raw, err := json.Marshal(w.pods["pod-2"])
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(len(raw)), "pod-bytes")
}
