package upstream

import "testing"

// moved makes a file one of another package.
func moved(from, to string) patch {
	return patch{old: "\npackage " + from + "\n", new: "\npackage " + to + "\n"}
}

// dotted has a file that was of a package import it.
func dotted(importPath string) patch {
	return patch{old: "\nimport (\n", new: "\nimport (\n\t. \"" + importPath + "\"\n"}
}

func queueSuite() suite {
	own, exported := moved("workqueue", "queues"), dotted("k8s.io/client-go/util/workqueue")
	return suite{
		folder: "queues", from: "util/workqueue", list: "testdata/workqueue.txt",
		files: map[string][]patch{
			"queue_test.go": {
				moved("workqueue_test", "queues"),
				{old: "*workqueue.Type\n", new: "workqueue.Interface\n"},
				{old: "workqueue.New()", new: "remote(t)"},
				{old: "workqueue.NewWithConfig(", new: "remoteWithConfig(t, "},
			},
			"delaying_queue_test.go": {
				own, exported,
				{old: "testingclock.NewFakeClock(time.Now())", new: "newClock(t)"},
				{old: "NewDelayingQueueWithConfig(DelayingQueueConfig{Clock: fakeClock})", new: "remoteDelaying(t)"},
				{old: "len(q.(*delayingType[any]).waitingForAddCh) == 0", new: "sent(q)"},
			},
			"rate_limiting_queue_test.go": {
				own,
				{old: "NewItemExponentialFailureRateLimiter(", new: "limitExponential(t, "},
				{old: "queue := NewRateLimitingQueue(limiter).(*rateLimitingType[any])", new: "queue := remoteLimited(limiter)"},
				{old: "fakeClock := testingclock.NewFakeClock(time.Now())", new: "fakeClock := queue"},
				{old: "delayingQueue := &delayingType[any]{", until: "queue.TypedDelayingInterface = delayingQueue", new: "delayingQueue := queue"},
			},
			"default_rate_limiters_test.go": {
				own, exported,
				{old: "NewItemExponentialFailureRateLimiter(", new: "limitExponential(t, "},
				{old: "NewItemFastSlowRateLimiter(", new: "limitFastSlow(t, "},
				{old: "NewMaxOfRateLimiter(", new: "limitMaxOf(t, "},
				{old: "NewWithMaxWaitRateLimiter(", new: "limitMaxWait("},
			},
			"metrics_test.go":      {own, exported},
			"parallelizer_test.go": {own, {old: "ParallelizeUntil(ctx", new: "parallelizeUntil(ctx"}, {old: "WithChunkSize(", new: "withChunkSize("}},
		},
	}
}

func TestUtilWorkqueue(t *testing.T) {
	queueSuite().run(t, "DELTAPLANE_ENGINE=memory", "DELTAPLANE_ENGINE=redis")
}
