package upstream

import (
	"testing"

	"github.com/deltaplane/deltaplane/internal/upstream"
)

func informerSuite() suite {
	own, exported := upstream.Moved("cache", "informers"), dotted("k8s.io/client-go/tools/cache")
	return suite{
		folder: "informers", from: "tools/cache", list: "testdata/cache.txt",
		// The bridge has these.
		without: []string{"eventHandlerCount", "isStarted", "isRegistered"},
		files: map[string][]upstream.Patch{
			"util_test.go": {own},
			"shared_informer_test.go": {
				own, exported,
				{Old: "NewSharedInformer(", New: "remoteInformer(t, "},
				{Old: ".(*sharedIndexInformer)", New: ""},
				{Old: "informer.processor.getListener", New: "informer.listener"},
				{Old: "informer.resyncCheckPeriod", New: "informer.Status().ResyncCheck"},
				{Old: "clock := testingclock.NewFakeClock(time.Now())", Until: "informer.processor.clock = clock", New: "clock := clock{}\n_ = clock"},
			},
			"controller_test.go": {
				own, exported,
				{Old: "controller := NewInformer(", New: "controller := remoteStore(t,"},
				{Old: "controller := NewTransformingInformer(", New: "controller := remoteTransforming(t,"},
				{
					Old: "store := NewStore(DeletionHandlingMetaNamespaceKeyFunc)", Until: "go c.RunWithContext(ctx)",
					New: `recorder := newEventRecorder(nil, DeletionHandlingMetaNamespaceKeyFunc)
					store, c := remoteStore(t, source, &v1.Pod{}, 0, recorder)
					recorder.store = store
					go c.RunWithContext(ctx)`,
				},
			},
			"index_test.go": {own, exported, {Old: "NewIndexer(", New: "writableIndexer(t, "}},
			"store_test.go": {
				own, exported,
				{Old: "NewStore(testStoreKeyFunc, WithTransformer(", New: "writableTransforming(t, testStoreKeyFunc, ("},
				{Old: "NewStore(testStoreKeyFunc)", New: "writableStore(t, testStoreKeyFunc)"},
				{Old: "NewIndexer(", New: "writableIndexer(t, "},
			},
			"listers_test.go": {
				own, exported,
				{Old: "mustCreateStore(", New: "mustCreateStore(t, "},
				{Old: "mustCreateStore(t, numObjects int", New: "mustCreateStore(t testing.TB, numObjects int"},
				{Old: "(b *testing.B, ", New: "(t *testing.B, "}, // of helpers of benchmarks
				{Old: "\tb.", New: "\tt."},
				{Old: "; n < b.N;", New: "; n < t.N;"},
				{Old: "NewStore(", New: "writableStore(t, "},
				{Old: "1000000,", New: "20000,"}, // as many as the store has
				{Old: "100000,", New: "20000,"},
			},
		},
	}
}

func TestToolsCache(t *testing.T) { informerSuite().run(t) }
