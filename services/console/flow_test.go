package console_test

import (
	"fmt"
	"testing"

	"connectrpc.com/connect"

	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/console/session"
)

func flowView() *consolev1.SubscribeRequest {
	return &consolev1.SubscribeRequest{View: &consolev1.SubscribeRequest_Flow{Flow: &consolev1.FlowView{}}}
}

func queuesView() *consolev1.SubscribeRequest {
	return &consolev1.SubscribeRequest{View: &consolev1.SubscribeRequest_Queues{Queues: &consolev1.QueuesView{}}}
}

// queue makes a queue with ready keys.
func (r *rig) queue(name string, keys ...string) {
	r.t.Helper()
	if _, err := r.queues.ConfigureQueue(r.t.Context(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: name}}); err != nil {
		r.t.Fatal(err)
	}
	if len(keys) == 0 {
		return
	}
	add := &queuev1.AddRequest{Queue: name}
	for _, key := range keys {
		add.Items = append(add.Items, &queuev1.AddItem{Key: key})
	}
	if _, err := r.adds.Add(r.t.Context(), add); err != nil {
		r.t.Fatal(err)
	}
}

func TestTheFlowShowsEachPartAndActionsAtOnce(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	r.queue("dev/job", "default/a", "default/b")
	p := r.open()
	p.subscribe(1, flowView())
	p.subscribe(2, queuesView())
	served := map[uint32]bool{}
	p.until("what is served and queued", func(m *consolev1.OpenResponse) bool {
		for _, c := range m.GetFlow().GetCollections() {
			if c.GetCollection() == "dev/pods.v1" && c.GetMirror().GetState() == "watching" && c.GetServed().GetState() == "serving" &&
				m.GetFlow().GetTotals().GetReady() == 2 && m.GetFlow().GetQueues()[0].GetWorkers() != nil {
				served[1] = true
			}
		}
		if q := m.GetQueues(); len(q.GetQueues()) == 1 && q.GetEngine() == "redis" && q.GetQueues()[0].GetReady() == 2 {
			served[2] = true
		}
		return len(served) == 2
	})
	if _, err := call[consolev1.ActOnQueueRequest, consolev1.ActOnQueueResponse](r, consolev1.ConsoleService_ActOnQueue_FullMethodName,
		&consolev1.ActOnQueueRequest{Queue: "dev/job", Action: consolev1.QueueAction_QUEUE_ACTION_PAUSE}); err != nil {
		t.Fatal(err)
	}
	p.until("the pause", func(m *consolev1.OpenResponse) bool {
		q := m.GetQueues().GetQueues()
		return len(q) == 1 && q[0].GetPaused() && q[0].GetHealth() == consolev1.Health_HEALTH_WARNING
	})
}

func TestTheRatesOfQueuesAreThoseOfTheTimeBetweenTwoAnswers(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	r.queue("dev/job", "default/before")
	p := r.open()
	n := 0
	add := func() {
		n++
		r.queue("dev/job", fmt.Sprint("default/", n))
	}
	settle := func() {
		add()
		held, err := r.adds.Get(t.Context(), &queuev1.GetRequest{Queue: "dev/job", SessionId: "worker-1", MaxItems: 1})
		if err != nil || len(held.GetLeases()) != 1 {
			t.Fatalf("no key was leased: %v %v", held, err)
		}
		if _, err := r.adds.Settle(t.Context(), &queuev1.SettleRequest{SessionId: "worker-1", Settlements: []*queuev1.Settlement{{
			Queue: "dev/job", Key: held.GetLeases()[0].GetKey(), Token: held.GetLeases()[0].GetToken(), Outcome: queuev1.Outcome_OUTCOME_FORGET,
		}}}); err != nil {
			t.Fatal(err)
		}
		add() // a count that changes, so that there is another update
	}
	for id, view := range map[uint32]*consolev1.SubscribeRequest{1: queuesView(), 2: flowView()} {
		p.subscribe(id, view)
		// A tab that is slow gets the last state alone, so what is not seen is done once more.
		until := func(what string, do func(), is func(*consolev1.Rates) bool) {
			t.Helper()
			p.until(what, func(m *consolev1.OpenResponse) bool {
				for _, q := range append(m.GetQueues().GetQueues(), m.GetFlow().GetQueues()...) {
					if m.GetSubscription() == id && q.GetRates() != nil {
						if is(q.GetRates()) {
							return true
						}
						do()
					}
				}
				return false
			})
		}
		until("that nothing is done", func() {}, func(one *consolev1.Rates) bool { return one.GetAdds() == 0 && one.GetSettlements() == 0 })
		add()
		until("adds", add, func(one *consolev1.Rates) bool { return one.GetAdds() > 0 && one.GetSettlements() == 0 })
		settle()
		until("settlements", settle, func(one *consolev1.Rates) bool { return one.GetSettlements() > 0 })
	}
}

func TestPartsThatDoNotAnswerAreNamed(t *testing.T) {
	t.Parallel()
	p := bare(t, nil).open()
	p.subscribe(1, flowView())
	p.subscribe(2, queuesView())
	p.until("the silence of all three", func(m *consolev1.OpenResponse) bool {
		return m.GetSubscription() == 1 && len(m.GetFlow().GetSilent()) == 3
	})
	if err := p.subscribes(3, &consolev1.SubscribeRequest{}); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("a subscription to nothing: %v", err)
	}
	if err := p.subscribes(0, flowView()); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("a subscription 0: %v", err)
	}
}

func TestASessionIsTheCallersAloneAndBounded(t *testing.T) {
	t.Parallel()
	r := bare(t, nil)
	p := r.open()
	r.token = "somebody-elses"
	if err := p.subscribes(1, flowView()); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("another caller subscribes: %v", err)
	}
	r.token = ""
	for id := uint32(1); id <= session.MaxSubscriptions; id++ {
		p.subscribe(id, queuesView())
	}
	if err := p.subscribes(session.MaxSubscriptions+1, queuesView()); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("one subscription more: %v", err)
	}
	p.subscribe(session.MaxSubscriptions, flowView()) // in place of another
	for range session.MaxOfCaller - 1 {
		r.open()
	}
	err := r.refused()
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("one session more: %v", err)
	}
}
