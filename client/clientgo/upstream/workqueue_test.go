package upstream

import (
	"testing"

	"github.com/deltaplane/deltaplane/internal/upstream"
)

// dotted has a file that was of a package import it.
func dotted(importPath string) upstream.Patch {
	return upstream.Patch{Old: "\nimport (\n", New: "\nimport (\n\t. \"" + importPath + "\"\n"}
}

func queueSuite() suite {
	own, exported := upstream.Moved("workqueue", "queues"), dotted("k8s.io/client-go/util/workqueue")
	return suite{
		folder: "queues", from: "util/workqueue", list: "testdata/workqueue.txt",
		files: map[string][]upstream.Patch{
			"queue_test.go": {
				upstream.Moved("workqueue_test", "queues"),
				{Old: "*workqueue.Type\n", New: "workqueue.Interface\n"},
				{Old: "workqueue.New()", New: "remote(t)"},
				{Old: "workqueue.NewWithConfig(", New: "remoteWithConfig(t, "},
			},
			"delaying_queue_test.go": {
				own, exported,
				{Old: "testingclock.NewFakeClock(time.Now())", New: "newClock(t)"},
				{Old: "NewDelayingQueueWithConfig(DelayingQueueConfig{Clock: fakeClock})", New: "remoteDelaying(t)"},
				{Old: "len(q.(*delayingType[any]).waitingForAddCh) == 0", New: "sent(q)"},
			},
			"rate_limiting_queue_test.go": {
				own,
				{Old: "NewItemExponentialFailureRateLimiter(", New: "limitExponential(t, "},
				{Old: "queue := NewRateLimitingQueue(limiter).(*rateLimitingType[any])", New: "queue := remoteLimited(limiter)"},
				{Old: "fakeClock := testingclock.NewFakeClock(time.Now())", New: "fakeClock := queue"},
				{Old: "delayingQueue := &delayingType[any]{", Until: "queue.TypedDelayingInterface = delayingQueue", New: "delayingQueue := queue"},
			},
			"default_rate_limiters_test.go": {
				own, exported,
				{Old: "NewItemExponentialFailureRateLimiter(", New: "limitExponential(t, "},
				{Old: "NewItemFastSlowRateLimiter(", New: "limitFastSlow(t, "},
				{Old: "NewMaxOfRateLimiter(", New: "limitMaxOf(t, "},
				{Old: "NewWithMaxWaitRateLimiter(", New: "limitMaxWait("},
			},
			"metrics_test.go":      {own, exported},
			"parallelizer_test.go": {own, {Old: "ParallelizeUntil(ctx", New: "parallelizeUntil(ctx"}, {Old: "WithChunkSize(", New: "withChunkSize("}},
		},
	}
}

func TestUtilWorkqueue(t *testing.T) {
	queueSuite().run(t, "DELTAPLANE_ENGINE=memory", "DELTAPLANE_ENGINE=redis")
}
