package clientgo_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/client-go/util/workqueue"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/clientgo"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
)

// limiterOf is the limiter that a queue has on the service.
func limiterOf(t *testing.T, conn *grpc.ClientConn, name string) *queuev1.RateLimiter {
	t.Helper()
	got, err := queuev1.NewQueueAdminServiceClient(conn).ListQueues(t.Context(), &queuev1.ListQueuesRequest{Prefix: name})
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range got.GetQueues() {
		if q.GetConfig().GetName() == name {
			return q.GetConfig().GetRateLimiter()
		}
	}
	t.Fatalf("there is no queue %s", name)
	return nil
}

// TestStandardLimitersBecomeTheSettingsOfTheQueue compares a queue that was made with a limiter of
// client-go with one that was configured by hand.
func TestStandardLimitersBecomeTheSettingsOfTheQueue(t *testing.T) {
	t.Parallel()
	conn := serve(t, queue.Config{})
	bucket := func() workqueue.TypedRateLimiter[string] {
		return &workqueue.TypedBucketRateLimiter[string]{Limiter: rate.NewLimiter(7.5, 33)}
	}
	for name, c := range map[string]struct {
		limiter workqueue.TypedRateLimiter[string]
		want    client.RateLimiter
	}{
		"none":               {nil, client.MaxOf(client.Exponential(5*time.Millisecond, 1000*time.Second), client.Bucket(10, 100))},
		"exponential":        {workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Millisecond, 1000*time.Second), client.Exponential(5*time.Millisecond, 1000*time.Second)},
		"exponential-power":  {workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, 64*time.Second), client.Exponential(time.Second, 64*time.Second)},
		"exponential-capped": {workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Minute, time.Second), client.Exponential(time.Second, time.Second)},
		"exponential-zero":   {workqueue.NewTypedItemExponentialFailureRateLimiter[string](0, time.Second), client.Exponential(0, 0)},
		"item-based":         {workqueue.DefaultTypedItemBasedRateLimiter[string](), client.Exponential(time.Millisecond, 1000*time.Second)},
		"bucket":             {bucket(), client.Bucket(7.5, 33)},
		"fast-slow":          {workqueue.NewTypedItemFastSlowRateLimiter[string](5*time.Millisecond, 10*time.Second, 3), client.FastSlow(5*time.Millisecond, 10*time.Second, 3)},
		"all": {
			clientgo.MaxWait(clientgo.MaxOf(workqueue.DefaultTypedItemBasedRateLimiter[string](), bucket()), time.Minute),
			client.MaxWait(client.MaxOf(client.Exponential(time.Millisecond, 1000*time.Second), client.Bucket(7.5, 33)), time.Minute),
		},
	} {
		cfg := config[string](t, nil)
		cfg.Queue = "made/" + name
		open(t, conn, c.limiter, cfg).Len() // it has been configured then
		if _, err := client.NewQueue(conn, "want/"+name, "").Configure(t.Context(), client.QueueConfig{RateLimiter: c.want}); err != nil {
			t.Fatal(name, err)
		}
		if d := cmp.Diff(limiterOf(t, conn, "want/"+name), limiterOf(t, conn, "made/"+name), protocmp.Transform()); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if c.limiter != nil && c.limiter.NumRequeues("") != 0 {
			t.Errorf("%s: reading it left %d failures of the zero item", name, c.limiter.NumRequeues(""))
		}
	}
}

// own is a limiter that nobody knows.
type own struct {
	workqueue.TypedRateLimiter[string]
}

func TestALimiterThatCannotBeReadIsRefusedAndTheErrorNamesAnother(t *testing.T) {
	t.Parallel()
	exponential := workqueue.DefaultTypedItemBasedRateLimiter[string]()
	for use, limiter := range map[string]workqueue.TypedRateLimiter[string]{
		"clientgo.MaxOf":       workqueue.DefaultTypedControllerRateLimiter[string](),
		"clientgo.MaxWait":     workqueue.NewTypedWithMaxWaitRateLimiter(exponential, time.Second),
		"client.FastSlow":      workqueue.NewTypedItemFastSlowRateLimiter[string](time.Second, time.Second, 3),
		"Settings.RateLimiter": clientgo.MaxOf[string](exponential, own{exponential}),
		"finite":               &workqueue.TypedBucketRateLimiter[string]{Limiter: rate.NewLimiter(rate.Inf, 1)},
	} {
		_, err := clientgo.NewQueue(t.Context(), nil, limiter, config[string](t, nil))
		if !errors.Is(err, clientgo.ErrRateLimiter) || !strings.Contains(err.Error(), use) {
			t.Errorf("error %v, want one that names %s", err, use)
		}
	}
	cfg := config[string](t, nil)
	cfg.Settings = &client.QueueConfig{RateLimiter: client.Bucket(1, 1)}
	if _, err := clientgo.NewQueue(t.Context(), nil, exponential, cfg); err == nil {
		t.Error("a limiter besides that of the settings is taken")
	}
}
