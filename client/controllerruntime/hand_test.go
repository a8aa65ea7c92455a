package controllerruntime

import (
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

// What client-go's queue does with calls for a request in hand, in whatever order they come.
func TestNoAddOfARequestInHandIsLost(t *testing.T) {
	type calls func(q *requests[string])
	limited := func(q *requests[string]) { q.AddRateLimited("a") }
	forget := func(q *requests[string]) { q.Forget("a") }
	after := func(q *requests[string]) {
		q.AddWithOpts(priorityqueue.AddOpts{After: time.Millisecond}, "a")
	}
	tests := map[string]struct {
		calls    []calls
		requeues int
	}{
		"a rate-limited add then a forget":   {[]calls{limited, forget}, 0},
		"a forget then a rate-limited add":   {[]calls{forget, limited}, 1},
		"two rate-limited adds":              {[]calls{limited, limited}, 3},
		"an add after a while":               {[]calls{after}, 1},
		"an add after a while then a forget": {[]calls{after, forget}, 0},
	}
	onEachEngine(t, func(t *testing.T, qt *queueTest) {
		for name, tt := range tests {
			t.Run(name, func(t *testing.T) {
				q := openNamed[string](t, qt, "dev/"+strings.ReplaceAll(t.Name(), "/", "-"), nil)
				q.Add("a")
				q.Get()
				q.AddRateLimited("a") // a run before that failed
				q.Done("a")
				if _, shutdown := q.Get(); shutdown {
					t.Fatal("it does not come again after a failure")
				}
				for _, call := range tt.calls {
					call(q)
				}
				q.Done("a")
				if _, shutdown := q.Get(); shutdown {
					t.Fatal("it does not come again")
				}
				if got := q.NumRequeues("a"); got != tt.requeues {
					t.Errorf("%d requeues, want %d", got, tt.requeues)
				}
			})
		}
	})
}
