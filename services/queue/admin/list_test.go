package admin_test

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

func TestItemsAreListedByStateOverAllPartitions(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Config(t, &queuev1.QueueConfig{Partitions: 3})
		ctx := t.Context()
		want := map[queuev1.State][]string{}
		for i := range 60 {
			state := queuev1.State_STATE_READY
			if i%2 == 0 {
				state = queuev1.State_STATE_DELAYED
			}
			key := fmt.Sprint("k", i)
			want[state] = append(want[state], key)
			req := &queuev1.AddAfterRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: key}}}
			if i%2 == 0 {
				req.Delay = queuetest.Seconds(3600)
			}
			if _, err := r.AddAfter(ctx, req); err != nil {
				t.Fatal(err)
			}
		}
		res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", MaxItems: 4, Wait: queuetest.Seconds(5)})
		if err != nil || len(res.GetLeases()) == 0 {
			t.Fatalf("Get = %v, %v", res, err)
		}
		for i, l := range res.GetLeases() {
			state := queuev1.State_STATE_PROCESSING
			if i == 0 {
				state = queuev1.State_STATE_DIRTY
				r.AddKeys(t, l.GetKey())
			}
			want[queuev1.State_STATE_READY] = slices.DeleteFunc(want[queuev1.State_STATE_READY], func(k string) bool { return k == l.GetKey() })
			want[state] = append(want[state], l.GetKey())
		}
		var all []string
		for _, keys := range want {
			all = append(all, keys...)
		}
		want[queuev1.State_STATE_UNSPECIFIED] = all
		want[queuev1.State_STATE_DEAD] = nil
		for state, keys := range want {
			for _, size := range []int32{0, 1, 7, 1000} {
				got, _ := r.List(t, state, size)
				slices.Sort(got)
				slices.Sort(keys)
				if !slices.Equal(got, keys) {
					t.Errorf("%v in pages of %d: %v, want %v", state, size, got, keys)
				}
			}
		}
	})
}

func TestAPageOfItemsIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Config(t, &queuev1.QueueConfig{Partitions: 2})
		barrier := make([]*deltav1.CollectionRevision, 16)
		for i := range barrier {
			barrier[i] = &deltav1.CollectionRevision{
				Collection: "dev/" + strings.Repeat("p", 240) + fmt.Sprint(i) + ".v1", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "1"},
			}
		}
		var want []string
		for i := range 600 {
			key := strings.Repeat("k", 900) + fmt.Sprint(i)
			want = append(want, key)
			if _, err := r.Add(t.Context(), &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: key, Barrier: barrier}}}); err != nil {
				t.Fatal(err)
			}
		}
		got, pages := r.List(t, queuev1.State_STATE_READY, 1000)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || pages < 3 {
			t.Errorf("%d keys in %d pages, want each of %d once", len(got), pages, len(want))
		}
	})
}

// A page that did not fit is sent in parts, whatever size the next call asks for.
func TestThePageSizeMayChangeFromPageToPage(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	barrier := make([]*deltav1.CollectionRevision, 64)
	for i := range barrier {
		barrier[i] = &deltav1.CollectionRevision{
			Collection: "dev/" + strings.Repeat("p", 240) + fmt.Sprint(i) + ".v1", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "1"},
		}
	}
	want := map[string]bool{}
	for i := range 400 { // in another order than that of their names
		key := fmt.Sprintf("k%03d", (i*37)%400)
		want[key] = true
		for part := range slices.Chunk(barrier, wire.MaxMarks) {
			if _, err := r.Add(t.Context(), &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: key, Barrier: part}}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	sizes, cut := []int32{90, 128, 7, 1000, 30}, false
	for n, token := 0, ""; n == 0 || token != ""; n++ {
		size := sizes[n%len(sizes)]
		res, err := r.ListItems(t.Context(), &queuev1.ListItemsRequest{Queue: queuetest.Q, PageSize: size, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range res.GetItems() {
			delete(want, it.GetKey())
		}
		token = res.GetNextPageToken()
		cut = cut || token != "" && len(res.GetItems()) < int(size)
	}
	if !cut || len(want) > 0 {
		t.Errorf("%d of 400 keys were left out; a page cut short: %v", len(want), cut)
	}
}

func TestABadPageTokenIsNamed(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Config(t, &queuev1.QueueConfig{Partitions: 2})
		r.AddKeys(t, queuetest.KeysN(20)...)
		res, err := r.ListItems(t.Context(), &queuev1.ListItemsRequest{Queue: queuetest.Q, State: queuev1.State_STATE_READY, PageSize: 3})
		if err != nil || res.GetNextPageToken() == "" {
			t.Fatalf("ListItems = %v, %v", res, err)
		}
		enc := base64.RawURLEncoding.EncodeToString
		for _, token := range []string{
			"%", "a", enc([]byte("2")), enc([]byte("2 0 x y")), enc([]byte("2 0 99 y")), enc([]byte("2 0 -1 y")), enc([]byte("2 0 1 ?")),
			enc([]byte("2 0 4 9:x1")), enc([]byte("2 0 5 -1:x1")), enc([]byte("x 0 4 0:x1")), enc([]byte("0 0 0 a")),
			enc([]byte("2 -1 0 a")), enc([]byte("2 129 0 a")), enc([]byte("2 x 0 a")), enc([]byte("2 0 a")),
		} {
			_, err := r.ListItems(t.Context(), &queuev1.ListItemsRequest{Queue: queuetest.Q, State: queuev1.State_STATE_READY, PageToken: token})
			if rpc.Code(err) != codes.InvalidArgument || rpc.Violations(err)["page_token"] == "" {
				t.Errorf("token %q: %v", token, err)
			}
		}
		_, err = r.ListItems(t.Context(), &queuev1.ListItemsRequest{Queue: queuetest.Q, State: queuev1.State_STATE_DEAD, PageToken: res.GetNextPageToken()})
		if rpc.Violations(err)["page_token"] == "" {
			t.Errorf("a token of another state's list: %v", err)
		}
	})
}
