package console_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/console"
)

// act does something with keys, and returns what became of each.
func (r *rig) act(queue string, action consolev1.KeyAction, keys ...string) (out []consolev1.KeyResultStatus) {
	r.t.Helper()
	answer, err := call[consolev1.ActOnKeysRequest, consolev1.ActOnKeysResponse](r, consolev1.ConsoleService_ActOnKeys_FullMethodName,
		&consolev1.ActOnKeysRequest{Queue: queue, Keys: keys, Action: action})
	if err != nil {
		r.t.Fatal(err)
	}
	for i, one := range answer.GetResults() {
		if one.GetKey() != keys[i] {
			r.t.Errorf("result %d is of %s, want %s", i, one.GetKey(), keys[i])
		}
		out = append(out, one.GetStatus())
	}
	return out
}

// later adds a key that is due in an hour.
func (r *rig) later(queue, key string) {
	r.t.Helper()
	if _, err := r.adds.AddAfter(r.t.Context(), &queuev1.AddAfterRequest{
		Queue: queue, Items: []*queuev1.AddItem{{Key: key}}, Delay: durationpb.New(time.Hour),
	}); err != nil {
		r.t.Fatal(err)
	}
}

func queueView(v *consolev1.QueueView) *consolev1.SubscribeRequest {
	return &consolev1.SubscribeRequest{View: &consolev1.SubscribeRequest_Queue{Queue: v}}
}

func TestAQueueShowsItsKeysAndWhatIsDoneToThem(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	r.queue("dev/job", "default/a", "default/b", "default/c")
	r.later("dev/job", "default/later")
	held, err := r.adds.Get(t.Context(), &queuev1.GetRequest{Queue: "dev/job", SessionId: "worker-1", MaxItems: 1, LeaseDuration: durationpb.New(time.Hour)})
	if err != nil || len(held.GetLeases()) != 1 {
		t.Fatalf("no key was leased: %v %v", held, err)
	}
	worked := held.GetLeases()[0].GetKey()
	p := r.open()
	p.subscribe(1, queueView(&consolev1.QueueView{Queue: "dev/job", Limit: 10}))
	first := p.until("the queue", func(m *consolev1.OpenResponse) bool { return len(m.GetQueue().GetKeys()) == 4 }).GetQueue()
	s := first.GetSummary()
	if s.GetReady() != 2 || s.GetDelayed() != 1 || s.GetProcessing() != 1 || first.GetTotal() != 4 || first.GetMore() {
		t.Errorf("counts are %v, %d in all", s, first.GetTotal())
	}
	if len(first.GetLatencies()) != 2 || first.GetLatencies()[0].GetOf() != "ready" || first.GetLatencies()[0].GetKeys() != 2 || len(first.GetSettings()) == 0 {
		t.Errorf("latencies are %v, settings %v", first.GetLatencies(), first.GetSettings())
	}
	for _, c := range []struct {
		name string
		view *consolev1.QueueView
		want string
	}{
		{"a state", &consolev1.QueueView{State: consolev1.KeyState_KEY_STATE_DELAYED}, "default/later"},
		{"a held key", &consolev1.QueueView{State: consolev1.KeyState_KEY_STATE_PROCESSING}, worked},
		{"a whole key", &consolev1.QueueView{Text: "default/later"}, "default/later"},
		{"a part of a key", &consolev1.QueueView{Text: "late"}, "default/later"},
		{"nothing", &consolev1.QueueView{Text: "default/late", State: consolev1.KeyState_KEY_STATE_DEAD}, ""},
	} {
		c.view.Queue, c.view.Limit = "dev/job", 10
		p.subscribe(2, queueView(c.view))
		p.until(c.name, func(m *consolev1.OpenResponse) bool {
			q := m.GetQueue()
			if m.GetSubscription() != 2 || q == nil {
				return false
			}
			return len(q.GetKeys()) == 0 && c.want == "" || len(q.GetKeys()) == 1 && q.GetKeys()[0].GetKey() == c.want
		})
	}

	const done, unchanged, holds = consolev1.KeyResultStatus_KEY_RESULT_STATUS_DONE, consolev1.KeyResultStatus_KEY_RESULT_STATUS_UNCHANGED, consolev1.KeyResultStatus_KEY_RESULT_STATUS_HELD
	for _, c := range []struct {
		action consolev1.KeyAction
		keys   []string
		want   string
	}{
		{consolev1.KeyAction_KEY_ACTION_RETRY, []string{"default/later", "default/none"}, fmt.Sprint(done, unchanged)},
		{consolev1.KeyAction_KEY_ACTION_DELETE, []string{worked, "default/later"}, fmt.Sprint(holds, done)},
		{consolev1.KeyAction_KEY_ACTION_RELEASE, []string{worked}, fmt.Sprint(done)},
		{consolev1.KeyAction_KEY_ACTION_FRONT, []string{"default/c"}, fmt.Sprint(done)},
	} {
		if got := r.act("dev/job", c.action, c.keys...); strings.Trim(fmt.Sprint(got), "[]") != c.want {
			t.Errorf("%v of %v: %v, want %s", c.action, c.keys, got, c.want)
		}
	}
	p.until("that all of it was done", func(m *consolev1.OpenResponse) bool {
		q := m.GetQueue()
		if m.GetSubscription() != 1 || len(q.GetKeys()) != 3 {
			return false
		}
		for _, key := range q.GetKeys() {
			if key.GetKey() == "default/c" && key.GetPriority() == 3 {
				return q.GetSummary().GetReady() == 3
			}
		}
		return false
	})
	next, err := r.adds.Get(t.Context(), &queuev1.GetRequest{Queue: "dev/job", SessionId: "worker-1", MaxItems: 1})
	if err != nil || next.GetLeases()[0].GetKey() != "default/c" {
		t.Errorf("the next key is %v, want the one in front: %v", next.GetLeases(), err)
	}
}

func TestActionsThatNameNothingAreRefused(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	for name, in := range map[string]*consolev1.ActOnKeysRequest{
		"no keys":       {Queue: "q", Action: consolev1.KeyAction_KEY_ACTION_RETRY},
		"too many keys": {Queue: "q", Action: consolev1.KeyAction_KEY_ACTION_RETRY, Keys: make([]string, 1001)},
		"no action":     {Queue: "q", Keys: []string{"a"}},
	} {
		_, err := call[consolev1.ActOnKeysRequest, consolev1.ActOnKeysResponse](r, consolev1.ConsoleService_ActOnKeys_FullMethodName, in)
		if connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	for action := range consolev1.QueueAction_name {
		_, err := call[consolev1.ActOnQueueRequest, consolev1.ActOnQueueResponse](r, consolev1.ConsoleService_ActOnQueue_FullMethodName,
			&consolev1.ActOnQueueRequest{Queue: "none", Action: consolev1.QueueAction(action)})
		want := connect.CodeNotFound
		if action == 0 {
			want = connect.CodeInvalidArgument
		}
		if connect.CodeOf(err) != want {
			t.Errorf("%v of a queue that is not there: %v", consolev1.QueueAction(action), err)
		}
	}
}

func TestAKeySaysWhyItWaits(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	r.queue("dev/job", "default/a")
	p := r.open()
	p.subscribe(1, &consolev1.SubscribeRequest{View: &consolev1.SubscribeRequest_Key{Key: &consolev1.KeyView{Queue: "dev/job", Key: "default/a"}}})
	p.until("that nobody works the queue", func(m *consolev1.OpenResponse) bool {
		k := m.GetKey()
		return k.GetCause() == "no_worker" && k.GetState() == consolev1.KeyState_KEY_STATE_READY && len(k.GetTimeline()) > 0 && len(k.GetSilent()) == 0 && k.GetItem().GetKey() == "default/a"
	})
	if _, err := r.queues.PauseQueue(t.Context(), &queuev1.PauseQueueRequest{Queue: "dev/job"}); err != nil {
		t.Fatal(err)
	}
	p.until("the pause", func(m *consolev1.OpenResponse) bool { return m.GetKey().GetCause() == "queue_paused" })
}

func TestASearchFindsKeysObjectsQueuesAndCollections(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	r.put("needle", "1")
	r.queue("dev/needles", "default/needle")
	p := r.open() // an object is found once it is served
	p.subscribe(1, collection(&consolev1.CollectionView{Collection: "configmaps", Limit: 1, Text: "needle"}))
	p.until("the object", func(m *consolev1.OpenResponse) bool { return m.GetRows().GetTotal() == 1 })
	find := func(text string) (out []string) {
		answer, err := call[consolev1.SearchRequest, consolev1.SearchResponse](r, consolev1.ConsoleService_Search_FullMethodName, &consolev1.SearchRequest{Text: text})
		if err != nil {
			t.Fatal(err)
		}
		if len(answer.GetSilent()) > 0 {
			t.Errorf("not searched: %v", answer.GetSilent())
		}
		for _, f := range answer.GetFound() {
			out = append(out, strings.TrimSpace(strings.TrimPrefix(f.GetKind().String(), "FOUND_KIND_")+" "+f.GetCollection()+f.GetQueue()+" "+f.GetKey()))
		}
		return out
	}
	for text, want := range map[string][]string{
		"default/needle":    {"OBJECT dev/configmaps.v1 default/needle", "KEY dev/needles default/needle"},
		"needle":            {"OBJECT dev/configmaps.v1 default/needle", "QUEUE dev/needles"},
		"configmaps":        {"COLLECTION dev/configmaps.v1"},
		"configmaps needle": {"OBJECT dev/configmaps.v1 default/needle"},
		"pods needle":       nil,
	} {
		if got := find(text); strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("%q finds %v, want %v", text, got, want)
		}
	}
	_, err := call[consolev1.SearchRequest, consolev1.SearchResponse](r, consolev1.ConsoleService_Search_FullMethodName, &consolev1.SearchRequest{Text: " "})
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("a search for nothing: %v", err)
	}
}

// fakeTraces has one trace.
type fakeTraces struct{}

func (fakeTraces) List(text string, failed bool, _ int) []*consolev1.TraceSummary {
	if text != "" || failed {
		return nil
	}
	return []*consolev1.TraceSummary{{Id: "aa", Name: "reconcile"}}
}

func (fakeTraces) Get(id string) *consolev1.Trace {
	if id != "aa" {
		return nil
	}
	return &consolev1.Trace{Summary: &consolev1.TraceSummary{Id: "aa"}, Spans: []*consolev1.Span{{Id: "01"}}}
}

func TestTracesAreThoseOfTheStoreWhereThereIsOne(t *testing.T) {
	t.Parallel()
	list := &consolev1.SubscribeRequest{View: &consolev1.SubscribeRequest_Traces{Traces: &consolev1.TracesView{}}}
	one := func(id string) *consolev1.SubscribeRequest {
		return &consolev1.SubscribeRequest{View: &consolev1.SubscribeRequest_Trace{Trace: &consolev1.TraceView{Id: id}}}
	}
	p := bare(t, func(_ *console.Config, d *console.Deps) { d.Traces = fakeTraces{} }).open()
	if !p.opened.GetHasTraces() {
		t.Error("the session does not say that there is a store")
	}
	p.subscribe(1, list)
	p.until("the list", func(m *consolev1.OpenResponse) bool {
		return m.GetTraces().GetStored() && len(m.GetTraces().GetTraces()) == 1
	})
	p.subscribe(2, one("AA"))
	p.until("the trace", func(m *consolev1.OpenResponse) bool {
		return m.GetTrace().GetStored() && len(m.GetTrace().GetSpans()) == 1
	})
	p.subscribe(2, one("bb"))
	p.until("that it is not kept", func(m *consolev1.OpenResponse) bool {
		return m.GetTrace().GetStored() && m.GetTrace().GetSummary() == nil
	})

	p = bare(t, nil).open()
	p.subscribe(1, list)
	p.until("that there is no store", func(m *consolev1.OpenResponse) bool { return m.GetTraces() != nil && !m.GetTraces().GetStored() })
	p.subscribe(2, one("aa"))
	p.until("that there is no store for one", func(m *consolev1.OpenResponse) bool { return m.GetTrace() != nil && !m.GetTrace().GetStored() })
}
