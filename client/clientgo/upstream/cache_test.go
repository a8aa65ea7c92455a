package upstream

import "testing"

func informerSuite() suite {
	own, exported := moved("cache", "informers"), dotted("k8s.io/client-go/tools/cache")
	return suite{
		folder: "informers", from: "tools/cache", list: "testdata/cache.txt",
		// The bridge has these.
		without: []string{"eventHandlerCount", "isStarted", "isRegistered"},
		files: map[string][]patch{
			"util_test.go": {own},
			"shared_informer_test.go": {
				own, exported,
				{old: "NewSharedInformer(", new: "remoteInformer(t, "},
				{old: ".(*sharedIndexInformer)", new: ""},
				{old: "informer.processor.getListener", new: "informer.listener"},
				{old: "informer.resyncCheckPeriod", new: "informer.Status().ResyncCheck"},
				{old: "clock := testingclock.NewFakeClock(time.Now())", until: "informer.processor.clock = clock", new: "clock := clock{}\n_ = clock"},
			},
			"controller_test.go": {
				own, exported,
				{old: "controller := NewInformer(", new: "controller := remoteStore(t,"},
				{old: "controller := NewTransformingInformer(", new: "controller := remoteTransforming(t,"},
				{
					old: "store := NewStore(DeletionHandlingMetaNamespaceKeyFunc)", until: "go c.RunWithContext(ctx)",
					new: `recorder := newEventRecorder(nil, DeletionHandlingMetaNamespaceKeyFunc)
					store, c := remoteStore(t, source, &v1.Pod{}, 0, recorder)
					recorder.store = store
					go c.RunWithContext(ctx)`,
				},
			},
			"index_test.go": {own, exported, {old: "NewIndexer(", new: "writableIndexer(t, "}},
			"store_test.go": {
				own, exported,
				{old: "NewStore(testStoreKeyFunc, WithTransformer(", new: "writableTransforming(t, testStoreKeyFunc, ("},
				{old: "NewStore(testStoreKeyFunc)", new: "writableStore(t, testStoreKeyFunc)"},
				{old: "NewIndexer(", new: "writableIndexer(t, "},
			},
			"listers_test.go": {
				own, exported,
				{old: "mustCreateStore(", new: "mustCreateStore(t, "},
				{old: "mustCreateStore(t, numObjects int", new: "mustCreateStore(t testing.TB, numObjects int"},
				{old: "(b *testing.B, ", new: "(t *testing.B, "}, // of helpers of benchmarks
				{old: "\tb.", new: "\tt."},
				{old: "; n < b.N;", new: "; n < t.N;"},
				{old: "NewStore(", new: "writableStore(t, "},
				{old: "1000000,", new: "20000,"}, // as many as the store has
				{old: "100000,", new: "20000,"},
			},
		},
	}
}

func TestToolsCache(t *testing.T) { informerSuite().run(t) }
