package console_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/console"
)

// counted counts the calls of a connection.
type counted struct {
	grpc.ClientConnInterface
	watches, lists atomic.Int64
}

func (c *counted) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if method == queuev1.QueueAdminService_ListQueues_FullMethodName {
		c.lists.Add(1)
	}
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

func (c *counted) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if strings.HasSuffix(method, indexv1.IndexService_Watch_FullMethodName) {
		c.watches.Add(1)
	}
	return c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
}

func TestTabsOfACallerShareWatchesAndQuestions(t *testing.T) {
	t.Parallel()
	var index, queue counted
	r := start(t, func(_ *console.Config, d *console.Deps) {
		index.ClientConnInterface, queue.ClientConnInterface = d.Index.Conn, d.Queue.Conn
		d.Index.Conn, d.Queue.Conn = &index, &queue
	})
	r.put("one", "1")
	row := func(m *consolev1.OpenResponse) bool { return len(m.GetRows().GetRows()) == 1 }
	first := r.open() // its watch may be refused until the collection is served
	first.subscribe(1, collection(&consolev1.CollectionView{Collection: "dev/configmaps.v1", Limit: 1}))
	first.until("the row", row)
	watched := index.watches.Load()
	const tabs = 8
	open := make([]*tab, tabs)
	for i := range open {
		open[i] = r.open()
		open[i].subscribe(1, collection(&consolev1.CollectionView{Collection: "dev/configmaps.v1", Limit: uint32(5 + i)}))
		open[i].subscribe(2, queuesView())
		open[i].subscribe(3, flowView())
	}
	for _, p := range open {
		p.until("the row", row)
	}
	began, before := time.Now(), queue.lists.Load()
	for _, p := range open[:2] {
		for range 3 {
			p.until("the flow", func(m *consolev1.OpenResponse) bool { return m.GetFlow() != nil })
		}
	}
	if n := index.watches.Load() - watched; n != 0 {
		t.Errorf("%d tabs more have %d watches more", tabs, n)
	}
	n := queue.lists.Load() - before
	passed := time.Since(began).Seconds() // of at least as long as n is of
	if float64(n) > passed/0.9+2 {
		t.Errorf("queues were listed %d times in %.1f s", n, passed)
	}
	for _, p := range open {
		p.close()
	}
}
