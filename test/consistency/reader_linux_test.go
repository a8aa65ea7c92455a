package consistency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// reader asks one replica or the other, half of the time for no less than it has seen.
type reader struct {
	c    *crew
	v    *verdicts
	seen *deltav1.Revision // the upper bound of its last answer
}

// errFault is an answer that does not keep what it states; it was noted.
var errFault = errors.New("an answer outside of its bounds")

func (r *reader) run(ctx context.Context) {
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := r.ask(call, r.c.replicas[rand.IntN(2)])
		cancel()
		if err == nil || errors.Is(err, errFault) || ctx.Err() != nil {
			continue
		}
		if code := rpc.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded && code != codes.NotFound {
			r.v.t.Errorf("a read failed: %v", err)
		}
		r.v.refuse(rpc.Reason(err))
	}
}

// consistency is what the next read asks for.
func (r *reader) consistency() *indexv1.Consistency {
	c := &indexv1.Consistency{Timeout: durationpb.New(2 * time.Second)}
	if rand.IntN(2) == 0 {
		c.AtLeast = r.seen
	}
	c.Exact = rand.IntN(8) == 0
	return c
}

// answer judges one answer by what it states; judge says what is wrong with it.
func (r *reader) answer(what string, c *indexv1.Consistency, a stated, judge func(bounds) string) error {
	b, err := boundsOf(a)
	if err != nil {
		return err
	}
	fault := judge(b)
	least, _ := strconv.Atoi(c.GetAtLeast().GetResourceVersion())
	switch {
	case fault != "":
	case c.GetExact() && !b.exact():
		fault = "is not exact, as it was asked to be"
	case b.revision < least:
		fault = fmt.Sprintf("is older than %d, which it was asked to be at least", least)
	case b.revision > r.c.src.now() || b.upper > r.c.src.now():
		fault = "is ahead of the source"
	}
	r.v.note(what, b, fault)
	r.seen = a.GetUpper()
	if fault != "" {
		return errFault
	}
	return nil
}

func (r *reader) ask(ctx context.Context, x indexv1.IndexServiceClient) error {
	c := r.consistency()
	key, node := rand.IntN(sourceKeys), "node-"+strconv.Itoa(rand.IntN(nodes))
	onNode := func(s event) bool { return nodeAt(s.rv) == node }
	only := func(k int) bool { return k == key }
	inNamespace := func(k int) bool { return k%namespaces == key%namespaces }
	switch rand.IntN(10) {
	case 0, 1:
		resp, err := x.Get(ctx, &indexv1.GetRequest{Collection: pods, Key: name(key), Consistency: c})
		if rpc.Reason(err) == "KEY_NOT_FOUND" {
			meta := rpc.Info(err).GetMetadata()
			absent := &indexv1.GetResponse{Revision: &deltav1.Revision{ResourceVersion: meta["resource_version"]}, Upper: &deltav1.Revision{ResourceVersion: meta["upper"]}}
			return r.answer("Get of nothing", c, absent, func(b bounds) string { return r.v.objects(shown{}, b, only, whatever) })
		}
		if err != nil {
			return err
		}
		got, err := shownBy([]*indexv1.Object{resp.GetObject()})
		if err != nil {
			return err
		}
		return r.answer("Get", c, resp, func(b bounds) string { return r.v.objects(got, b, only, whatever) })
	case 2:
		req, asked := &indexv1.BatchGetRequest{Collection: pods, Consistency: c}, map[int]bool{}
		for range 10 {
			if k := rand.IntN(sourceKeys); !asked[k] {
				req.Keys, asked[k] = append(req.Keys, name(k)), true
			}
		}
		resp, err := x.BatchGet(ctx, req)
		return r.objects("BatchGet", c, resp, err, func(k int) bool { return asked[k] }, whatever)
	case 3, 4:
		resp, err := x.List(ctx, &indexv1.ListRequest{Collection: pods, Consistency: c})
		return r.objects("List", c, resp, err, all, whatever)
	case 5:
		resp, err := x.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: pods, Index: "node", Values: []string{node}, Consistency: c})
		return r.objects("ByIndex", c, resp, err, all, onNode)
	case 6:
		resp, err := x.IndexKeys(ctx, &indexv1.IndexKeysRequest{Collection: pods, Index: "node", Value: node, Consistency: c})
		if err != nil {
			return err
		}
		return r.answer("IndexKeys", c, resp, func(b bounds) string { return r.v.keys(resp.GetKeys(), b, onNode) })
	case 7:
		resp, err := x.Count(ctx, &indexv1.CountRequest{Collection: pods, Namespace: namespace(key), Consistency: c})
		if err != nil {
			return err
		}
		return r.answer("Count", c, resp, func(b bounds) string { return r.v.number(int(resp.GetCount()), b, inNamespace, whatever) })
	case 8:
		resp, err := x.List(ctx, &indexv1.ListRequest{Collection: pods, Namespace: namespace(key), Consistency: c})
		return r.objects("List of a namespace", c, resp, err, inNamespace, whatever)
	default:
		return r.pages(ctx, c)
	}
}

type listed interface {
	stated
	GetObjects() []*indexv1.Object
}

func (r *reader) objects(what string, c *indexv1.Consistency, resp listed, err error, scope func(int) bool, match func(event) bool) error {
	if err != nil {
		return err
	}
	got, err := shownBy(resp.GetObjects())
	if err != nil {
		return err
	}
	return r.answer(what, c, resp, func(b bounds) string { return r.v.objects(got, b, scope, match) })
}

// pages begins a listing at one replica and goes on at the other, from a new snapshot.
func (r *reader) pages(ctx context.Context, c *indexv1.Consistency) error {
	one := rand.IntN(2)
	req := &indexv1.ListRequest{Collection: pods, PageSize: 20, Consistency: c}
	first, err := r.c.replicas[one].List(ctx, req)
	if err != nil || first.GetNextPageToken() == "" {
		return err
	}
	some := func(page *indexv1.ListResponse) func(bounds) string {
		got, err := shownBy(page.GetObjects())
		return func(b bounds) string {
			if err != nil {
				return err.Error()
			}
			return r.v.objects(got, b, func(k int) bool { _, ok := got[k]; return ok }, whatever)
		}
	}
	if err := r.answer("first page", c, first, some(first)); err != nil {
		return err
	}
	req.PageToken = first.GetNextPageToken()
	_, err = r.c.replicas[1-one].List(ctx, req)
	if rpc.Reason(err) != "SNAPSHOT_GONE" {
		return err
	}
	req.PageToken = rpc.Info(err).GetMetadata()["page_token"]
	next, err := r.c.replicas[1-one].List(ctx, req)
	if err != nil {
		return err
	}
	return r.answer("page of another replica", &indexv1.Consistency{AtLeast: first.GetUpper()}, next, some(next))
}

// watch keeps the objects that a watch of one replica tells, and judges them whenever it states
// bounds.
func (r *reader) watch(ctx context.Context, x indexv1.IndexServiceClient) {
	var at *deltav1.Position
	got, whole := shown{}, false
	for ctx.Err() == nil {
		req := &indexv1.WatchRequest{Collection: pods, Resume: at, BookmarkInterval: durationpb.New(time.Second), View: indexv1.View_VIEW_METADATA}
		if at == nil {
			got, whole = shown{}, false
		}
		stream, err := x.Watch(ctx, req)
		for err == nil {
			var resp *indexv1.WatchResponse
			if resp, err = stream.Recv(); err != nil {
				break
			}
			if resp.GetGap() != nil {
				at, got, whole = nil, shown{}, false
				continue
			}
			for _, e := range resp.GetEvents().GetEvents() {
				key, _ := keyOf(e.GetObject().GetKey())
				if delete(got, key); e.GetType() != deltav1.DeltaType_DELTA_TYPE_DELETED {
					got[key], _ = strconv.Atoi(e.GetObject().GetResourceVersion())
				}
			}
			whole = whole || resp.GetInitialStateEnd() != nil
			if resp.GetPosition() != nil {
				at = resp.GetPosition()
			}
			if whole && resp.GetRevision() != nil {
				_ = r.answer("watch", nil, resp, func(b bounds) string { return r.v.objects(got, b, all, whatever) })
			}
		}
		if ctx.Err() == nil {
			time.Sleep(50 * time.Millisecond) // the replica was killed
		}
	}
}
