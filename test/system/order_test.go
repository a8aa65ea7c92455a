package system

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	batchv1 "k8s.io/api/batch/v1"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// silence is how long everything but the reflector runs.
const silence = 30 * time.Second

// An index that has seen nothing must not look like a cluster that has nothing.
func TestWithoutAReflectorNothingIsWrittenAndReadsAreRefused(t *testing.T) {
	t.Parallel()
	u := newUp(t, "")
	u.apart = "reflector"
	u.start(t, "up", u.upArgs()...)
	u.awaitStart(t, "controllers")
	x := u.target()
	// A running pod of a Job whose worker would complete it, were it to see no pods; and a Job that
	// wants pods.
	job := createJob(t, x, jobOf("early", nil, func(s *batchv1.JobSpec) { s.Completions = new(int32(2)) }))

	client := x.index(t)
	ctx, cancel := context.WithTimeout(t.Context(), silence)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		answer, err := client.List(ctx, &indexv1.ListRequest{Collection: "jobs"})
		if code := rpc.Code(err); err == nil || code != codes.NotFound && code != codes.Unavailable && code != codes.DeadlineExceeded {
			t.Fatalf("List before the reflector: %v, %v; want COLLECTION_NOT_FOUND or COLLECTION_NOT_SYNCED", answer, err)
		}
		now, err := getJob(t.Context(), x, job.Name)
		if err != nil {
			t.Fatal(err)
		}
		if now.ResourceVersion != job.ResourceVersion {
			t.Fatalf("the Job was written to: %+v", now.Status)
		}
		if pods, err := podsOf(t.Context(), x, job); err != nil || len(pods) > 0 {
			t.Fatalf("%d pods were created, error %v", len(pods), err)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}

	u.start(t, "reflector", u.serveArgs("reflector")...)
	waitCondition(t, x, job.Name, batchv1.JobComplete, "", time.Minute)
	checkConverged(t, x)
}

func TestAnObjectOf1400KilobytesPassesThrough(t *testing.T) {
	t.Parallel()
	u := newUp(t, "")
	u.start(t, "up", u.upArgs()...)
	u.awaitStart(t, "controllers")
	x := u.target()
	job := createJob(t, x, jobOf("large", nil, func(s *batchv1.JobSpec) {
		s.Suspend = new(true)
		s.Template.Spec.Containers[0].Args = []string{fmt.Sprintf("%01400000d", 7)}
	}))
	client := x.index(t)
	eventually(t, 30*time.Second, "the large Job is in the index", func(ctx context.Context) error {
		answer, err := client.Get(ctx, &indexv1.GetRequest{Collection: "jobs", Key: "default/" + job.Name})
		if err == nil && len(answer.GetObject().GetPayload()) < 1_400_000 {
			return fmt.Errorf("payload has %d bytes", len(answer.GetObject().GetPayload()))
		}
		return err
	})
	checkConverged(t, x)
}
