package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

var (
	errGone = status.Error(codes.Unavailable, "gone")
	added   = deltav1.DeltaType_DELTA_TYPE_ADDED
)

func revision(rv string) *deltav1.Revision { return &deltav1.Revision{Epoch: 1, ResourceVersion: rv} }

func stateEnd(seq uint64, rv string) *indexv1.WatchResponse {
	return &indexv1.WatchResponse{
		Kind: &indexv1.WatchResponse_InitialStateEnd{InitialStateEnd: &indexv1.InitialStateEnd{}}, Position: at(seq), Revision: revision(rv),
	}
}

func gap(reason string) *indexv1.WatchResponse {
	return &indexv1.WatchResponse{Kind: &indexv1.WatchResponse_Gap{Gap: &indexv1.Gap{Reason: reason}}}
}

// onReplay runs a watch on scripted streams until the script refuses it.
func onReplay(t *testing.T, o client.WatchOptions, streams ...func(indexv1.IndexService_WatchServer) error) (events []client.Event, requests []*indexv1.WatchRequest) {
	t.Helper()
	r := &replay{streams: append(streams, says(status.Error(codes.InvalidArgument, "end of the script")))}
	conn, stop := serve(t, func(reg grpc.ServiceRegistrar) { indexv1.RegisterIndexServiceServer(reg, r) })
	defer stop()
	for e, err := range client.NewIndex(conn).Watch(t.Context(), "dev/pods.v1", o) {
		if err != nil {
			break
		}
		events = append(events, e)
	}
	return events, r.requests
}

func summary(events []client.Event) []string {
	var out []string
	for _, e := range events {
		s := fmt.Sprintf("%d %s%s@%d", e.Type, e.Object.Key, e.Reason, e.Position.Sequence)
		if e.Differences {
			s += " differences"
		}
		out = append(out, s)
	}
	return out
}

func TestAWatchAsksForWhatItsOptionsSay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, requests := onReplay(t, client.WatchOptions{
			Namespace: "a", Namespaces: []string{"b", "c"}, Labels: "app=web", FieldSelector: "spec.nodeName=n", Index: "node", Value: "v", Values: []string{"w"},
			View: client.ViewMetadata, Fields: []string{"metadata.name"}, AtLeast: client.Revision{Epoch: 1, RV: "5"},
			BookmarkEvery: time.Second, WhenSlow: client.SlowBootstrap, Live: true,
		})
		want := &indexv1.WatchRequest{
			Collection: "dev/pods.v1", Namespace: "a", Namespaces: []string{"b", "c"}, LabelSelector: "app=web", FieldSelector: "spec.nodeName=n",
			Index: "node", IndexValue: "v", IndexValues: []string{"w"}, View: indexv1.View_VIEW_METADATA,
			FieldMask: &fieldmaskpb.FieldMask{Paths: []string{"metadata.name"}}, Consistency: &indexv1.Consistency{AtLeast: revision("5")},
			BookmarkInterval: durationpb.New(time.Second), WhenSlow: indexv1.WhenSlow_WHEN_SLOW_BOOTSTRAP, SkipInitialState: true,
		}
		if diff := cmp.Diff(want, requests[0], protocmp.Transform()); diff != "" {
			t.Errorf("request (-want +got)\n%s", diff)
		}
	})
}

func TestAWatchTellsReasonsRevisionsAndPlacesToResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		batch := &indexv1.Events{Coalesced: true, Events: []*indexv1.Event{
			{Type: deltav1.DeltaType_DELTA_TYPE_UPDATED, Object: &indexv1.Object{Key: "a"}, Position: at(4), Traceparent: "00-trace"},
			{Type: deltav1.DeltaType_DELTA_TYPE_DELETED, Object: &indexv1.Object{Key: "b"}, Position: at(6), DeleteReason: deltav1.DeleteReason_DELETE_REASON_INFERRED},
			{Type: deltav1.DeltaType_DELTA_TYPE_DELETED, Object: &indexv1.Object{Key: "c"}, Position: at(6), DeleteReason: deltav1.DeleteReason_DELETE_REASON_FILTERED},
		}}
		events, _ := onReplay(t, client.WatchOptions{Resume: client.Position{Epoch: 1, Sequence: 2}},
			says(errGone, &indexv1.WatchResponse{Kind: &indexv1.WatchResponse_Events{Events: batch}, Position: at(7), Revision: revision("70")}))
		pos := func(n uint64) client.Position { return client.Position{Epoch: 1, Sequence: n, Term: 4} }
		want := []client.Event{
			{Type: client.EventUpdated, Object: client.Object{Key: "a"}, Position: pos(4), Coalesced: true, Trace: "00-trace"},
			// The next is of the same record: resuming behind it would lose that.
			{Type: client.EventDeleted, Object: client.Object{Key: "b"}, Position: pos(5), Coalesced: true, DeleteReason: client.DeleteInferred, FinalStateUnknown: true},
			{
				Type: client.EventDeleted, Object: client.Object{Key: "c"}, Position: pos(7), Coalesced: true, DeleteReason: client.DeleteFiltered,
				Revision: client.Revision{Epoch: 1, RV: "70"},
			},
		}
		if diff := cmp.Diff(want, events); diff != "" {
			t.Errorf("events (-want +got)\n%s", diff)
		}
	})
}

// What a reader knows is asked, and sent, when its position is lost, and not before.
func TestALostPositionIsAnsweredWithDifferences(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		knows := client.Known{}
		asked := 0
		events, requests := onReplay(t, client.WatchOptions{Known: func() client.Known { asked++; return knows }},
			func(s indexv1.IndexService_WatchServer) error {
				knows = client.Known{Epoch: 1, Versions: map[string]string{"a": "1", "b": "2"}} // from here on
				return says(errGone, events(nil, added, "a", "b"), stateEnd(5, "50"))(s)
			},
			says(errGone, gap("history no longer kept"), events(nil, added, "a")), // on the resume: not read on
			says(errGone, gap("history no longer kept"), events(nil, added, "c")), // breaks within the differences
			says(errGone, events(nil, added, "c"), stateEnd(9, "90")),
			says(nil, events(at(10), added, "d"), gap("reader was too slow"), events(nil, added, "x")), // in the middle
			says(errGone, events(at(11), added, "e")),                                                  // another replica has the history
		)
		want := []string{
			"1 a@0", "1 b@0", "4 @5",
			"6 history no longer kept@0 differences", "1 c@0",
			"6 initial state broke off@0 differences", "1 c@0", "4 @9",
			"1 d@10", "1 e@11",
		}
		if diff := cmp.Diff(want, summary(events)); diff != "" {
			t.Errorf("events (-want +got)\n%s", diff)
		}
		var got []string
		for _, r := range requests {
			got = append(got, fmt.Sprintf("behind %d, at least %q, knows %d of %d", r.GetResume().GetSequence(),
				r.GetConsistency().GetAtLeast().GetResourceVersion(), len(r.GetKnown()), r.GetKnownEpoch()))
		}
		wantRequests := []string{
			`behind 0, at least "", knows 0 of 0`,
			`behind 5, at least "", knows 0 of 0`,
			`behind 5, at least "", knows 2 of 1`,
			`behind 0, at least "50", knows 2 of 1`,
			`behind 9, at least "", knows 0 of 0`,
			`behind 10, at least "", knows 2 of 1`,
			`behind 11, at least "", knows 0 of 0`,
		}
		if diff := cmp.Diff(wantRequests, got); diff != "" {
			t.Errorf("requests (-want +got)\n%s", diff)
		}
		if asked != 4 {
			t.Errorf("asked %d times what is known", asked)
		}
	})
}

// A server that loses its place within the differences sends everything.
func TestAGapWithinDifferencesIsFollowedByAWholeState(t *testing.T) {
	t.Parallel()
	for name, resume := range map[string]client.Position{"known from the start": {}, "known after a loss": {Epoch: 1, Sequence: 3}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lost := says(errGone, gap("lost"), events(nil, added, "a"), gap("restarted"), events(nil, added, "b"), stateEnd(5, "50"))
			script := []func(indexv1.IndexService_WatchServer) error{says(errGone, gap("lost")), lost}
			want := []string{"6 lost@0 differences", "1 a@0", "6 restarted@0", "1 b@0", "4 @5"}
			if resume == (client.Position{}) {
				script = []func(indexv1.IndexService_WatchServer) error{says(errGone, gap("restarted"), events(nil, added, "b"), stateEnd(5, "50"))}
				want = want[2:]
			}
			events, _ := onReplay(t, client.WatchOptions{
				Resume: resume, Known: func() client.Known { return client.Known{Epoch: 1, Versions: map[string]string{"a": "1"}} },
			}, script...)
			if diff := cmp.Diff(want, summary(events)); diff != "" {
				t.Errorf("events (-want +got)\n%s", diff)
			}
		})
	}
}

func TestWhatIsKnownFromTheStartIsSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events, requests := onReplay(t, client.WatchOptions{Known: func() client.Known {
			return client.Known{Epoch: 3, Versions: map[string]string{"a": "1"}}
		}}, says(errGone, stateEnd(5, "50")))
		if diff := cmp.Diff([]string{"6 the reader has an earlier state@0 differences", "4 @5"}, summary(events)); diff != "" {
			t.Errorf("events (-want +got)\n%s", diff)
		}
		if len(requests[0].GetKnown()) != 1 || requests[0].GetKnownEpoch() != 3 {
			t.Errorf("request %v", requests[0])
		}
	})
}

func TestMoreThanARequestCarriesIsNotSent(t *testing.T) {
	t.Parallel()
	many, long := map[string]string{}, map[string]string{}
	for n := range 200_001 {
		many[fmt.Sprint(n)] = "1"
	}
	for n := range 100 {
		long[fmt.Sprintf("%0200000d", n)] = "1"
	}
	for name, known := range map[string]map[string]string{"many keys": many, "long keys": long} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			events, requests := onReplay(t, client.WatchOptions{
				Resume: client.Position{Epoch: 1, Sequence: 1}, Known: func() client.Known { return client.Known{Epoch: 1, Versions: known} },
			}, says(status.Error(codes.InvalidArgument, "end"), gap("lost"), events(nil, added, "a"), stateEnd(5, "50")))
			if diff := cmp.Diff([]string{"6 lost@0", "1 a@0", "4 @5"}, summary(events)); diff != "" {
				t.Errorf("events (-want +got)\n%s", diff)
			}
			if len(requests) != 1 || len(requests[0].GetKnown()) != 0 {
				t.Errorf("%d requests, the first with %d keys", len(requests), len(requests[0].GetKnown()))
			}
		})
	}
}

// A server that has no memory for what the reader has is not asked the same again: the whole state
// needs none.
func TestAServerWithoutRoomForWhatIsKnownIsAskedForTheWholeState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st, err := status.New(codes.ResourceExhausted, "full").WithDetails(&errdetails.ErrorInfo{Reason: "REQUEST_MEMORY", Domain: rpc.Domain})
		if err != nil {
			t.Fatal(err)
		}
		events, requests := onReplay(t, client.WatchOptions{
			Resume: client.Position{Epoch: 1, Sequence: 1}, Known: func() client.Known { return client.Known{Epoch: 1, Versions: map[string]string{"a": "1"}} },
		},
			says(errGone, gap("lost")), says(st.Err()), says(errGone, gap("lost"), events(nil, added, "b"), stateEnd(5, "50")),
			says(errGone, gap("lost again")), says(errGone, gap("lost again"), stateEnd(9, "90")))
		want := []string{"6 lost@0", "1 b@0", "4 @5", "6 lost again@0 differences", "4 @9"}
		if diff := cmp.Diff(want, summary(events)); diff != "" {
			t.Errorf("events (-want +got)\n%s", diff)
		}
		var known []int
		for _, r := range requests {
			known = append(known, len(r.GetKnown()))
		}
		if diff := cmp.Diff([]int{0, 1, 0, 0, 1}, known[:5]); diff != "" {
			t.Errorf("keys told with each request (-want +got)\n%s", diff)
		}
	})
}

func TestALiveWatchThatWasToldAStateIsNotSparedTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, requests := onReplay(t, client.WatchOptions{Live: true}, says(errGone, gap("lost")), says(errGone, events(nil, added, "a")))
		var got []bool
		for _, r := range requests {
			got = append(got, r.GetSkipInitialState())
		}
		if diff := cmp.Diff([]bool{true, false, false}, got); diff != "" {
			t.Errorf("without the state (-want +got)\n%s", diff)
		}
	})
}

// A server that has not read all of its log yet names no position: what happens
// until the next stream would be lost.
func TestALiveWatchWithoutAPositionIsNotLiveAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bookmark := &indexv1.WatchResponse{Kind: &indexv1.WatchResponse_Bookmark{Bookmark: &indexv1.Bookmark{}}, Revision: revision("4")}
		events, requests := onReplay(t, client.WatchOptions{Live: true}, says(errGone, bookmark), says(errGone, stateEnd(5, "50")))
		if len(requests) < 2 || requests[1].GetSkipInitialState() {
			t.Errorf("requests %v", requests)
		}
		if len(events) != 3 || events[1].Type != client.EventGap {
			t.Errorf("events %v", summary(events))
		}
	})
}

// outage is a connection to an index that cannot be reached, or refuses everybody.
type outage struct {
	grpc.ClientConnInterface
	err error

	mu    sync.Mutex
	tries []time.Time
}

func (o *outage) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tries = append(o.tries, time.Now())
	return refused{err: o.err}, nil
}

type refused struct {
	grpc.ClientStream
	err error
}

func (refused) SendMsg(any) error            { return nil }
func (refused) CloseSend() error             { return nil }
func (refused) Header() (metadata.MD, error) { return nil, nil }
func (r refused) RecvMsg(any) error          { return r.err }

func TestAnIndexThatIsAwayIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var retries []client.WatchRetry
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		for range client.NewIndex(&outage{err: errGone}).Watch(ctx, "pods", client.WatchOptions{OnRetry: func(r client.WatchRetry) { retries = append(retries, r) }}) {
			t.Error("an event came of nothing")
		}
		if n := len(retries); n < 120 || n > 600 {
			t.Fatalf("%d attempts in 10 minutes, want one in 2.5 s or so", n)
		}
		for n, r := range retries {
			e, ok := errors.AsType[*client.Error](r.Err)
			if !ok || e.Code != codes.Unavailable || r.Attempt != n+1 || r.Wait > 5*time.Second || n > 100 && r.Silent < time.Minute {
				t.Errorf("report %d: %+v", n, r)
			}
		}
	})
}

// 2,000 watches break at one moment: they come back over the time that the server asks for and
// more, or over seconds.
func TestAHerdComesBackSpreadOut(t *testing.T) {
	t.Parallel()
	errBusy := errors.New("busy")
	for name, c := range map[string]struct {
		err    error
		least  time.Duration // of the first wait
		bucket int           // most attempts in 10 ms behind the first
	}{
		"the server is gone":         {errGone, 0, 120},
		"the server asks for a time": {rpc.Status(errBusy, []rpc.Rule{{Is: errBusy, Code: codes.ResourceExhausted, Reason: "TOO_MANY_WATCHERS", Retry: 5 * time.Second}}), 5 * time.Second, 40},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const herd = 2000
				conn := &outage{err: c.err}
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				var all sync.WaitGroup
				for range herd {
					all.Go(func() {
						for range client.NewIndex(conn).Watch(ctx, "pods", client.WatchOptions{}) {
						}
					})
				}
				all.Wait()
				buckets, least := map[time.Duration]int{}, time.Hour
				for _, at := range conn.tries[herd:] {
					d := at.Sub(began)
					least = min(least, d)
					buckets[d/(10*time.Millisecond)]++
				}
				for at, n := range buckets {
					if n > c.bucket {
						t.Errorf("%d come back within 10 ms at %v, want at most %d", n, at*10*time.Millisecond, c.bucket)
					}
				}
				if least < c.least {
					t.Errorf("the first comes back after %v, want %v at least", least, c.least)
				}
				if len(buckets) < 200 {
					t.Errorf("they come back in %d moments only", len(buckets))
				}
			})
		})
	}
}

// Where a reader has received more than what is behind its place, it sends both back
// when it resumes, wherever it left.
func TestAPlaceInTheMiddleOfChangesIsSentBackWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		middle := &deltav1.Position{Epoch: 1, Sequence: 4, Term: 4, ToldEpoch: 2, ToldSequence: 9, ToldTerm: 5, Selection: 7}
		heard, requests := onReplay(t, client.WatchOptions{Resume: client.Position{Epoch: 1, Sequence: 2, Selection: 7}},
			says(errGone, unplaced(events(middle, added, "a", "b"))),
			says(errGone, unplaced(events(&deltav1.Position{Epoch: 2, Sequence: 9, Term: 5, Selection: 7}, added, "c", "d"))))
		told := func(epoch, seq, term uint64) client.Position {
			return client.Position{Epoch: epoch, Sequence: seq, Term: term, ToldEpoch: 2, ToldSequence: 9, ToldTerm: 5, Selection: 7}
		}
		want := []client.Position{told(1, 2, 0), told(1, 4, 4), told(1, 4, 4), {Epoch: 2, Sequence: 9, Term: 5, Selection: 7}}
		for i, e := range heard {
			if i >= len(want) || e.Position != want[i] {
				t.Errorf("event %d of %q is at %+v", i, e.Object.Key, e.Position)
			}
		}
		if len(heard) != len(want) || heard[0].Position.ObjectEpoch() != 0 || heard[3].Position.ObjectEpoch() != 2 {
			t.Errorf("heard %+v", heard)
		}
		if diff := cmp.Diff(middle, requests[1].GetResume(), protocmp.Transform()); diff != "" {
			t.Errorf("resumed (-want +got)\n%s", diff)
		}
	})
}

func unplaced(m *indexv1.WatchResponse) *indexv1.WatchResponse {
	for _, e := range m.GetEvents().GetEvents() {
		e.Position = nil
	}
	return m
}
