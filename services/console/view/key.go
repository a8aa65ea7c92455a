package view

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/why"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
)

// Key shows why a key of a queue waits.
func (h *Hub) Key(_ context.Context, v *consolev1.KeyView, changed func()) (Reader, error) {
	for _, field := range []struct{ name, value string }{{"queue", v.GetQueue()}, {"key", v.GetKey()}} {
		if field.value == "" {
			return nil, rpc.InvalidArgument(field.name, "is required")
		}
	}
	return h.polled("key\x00"+v.GetQueue()+"\x00"+v.GetKey(), changed, func() *poll {
		return newPoll(func(ctx context.Context) (*consolev1.OpenResponse, error) {
			facts, said, err := h.parts.Inspect(ctx, v.GetQueue(), v.GetKey())
			if err != nil {
				return nil, err
			}
			out := answer(why.Explain(facts))
			out.State = stateOf[facts.Item.State]
			if said != nil {
				out.Item = queueKey(said.GetItem())
				out.State = out.GetItem().GetState()
			}
			return &consolev1.OpenResponse{Content: &consolev1.OpenResponse_Key{Key: out}}, nil
		})
	})
}

var stateOf = map[workqueue.State]consolev1.KeyState{
	workqueue.Idle: consolev1.KeyState_KEY_STATE_IDLE, workqueue.Ready: consolev1.KeyState_KEY_STATE_READY, workqueue.Waiting: consolev1.KeyState_KEY_STATE_DELAYED,
	workqueue.Processing: consolev1.KeyState_KEY_STATE_PROCESSING, workqueue.Dirty: consolev1.KeyState_KEY_STATE_DIRTY, workqueue.StateDead: consolev1.KeyState_KEY_STATE_DEAD,
}

// answer is what "deltaplane why" says.
func answer(a *why.Answer) *consolev1.Key {
	out := &consolev1.Key{Queue: a.Queue, Key: a.Key, Cause: string(a.Cause), Sentence: a.Sentence}
	for _, c := range a.Also {
		out.Also = append(out.Also, string(c))
	}
	for _, e := range a.Timeline {
		m := &consolev1.Moment{What: e.What, By: e.By, Detail: e.Detail}
		if !e.Time.IsZero() {
			m.Time = timestamppb.New(e.Time.Truncate(time.Microsecond))
		}
		out.Timeline = append(out.Timeline, m)
	}
	for _, s := range a.Silent {
		if !slices.ContainsFunc(out.GetSilent(), func(have *consolev1.Silent) bool { return have.GetPart() == s.Part }) {
			out.Silent = append(out.Silent, &consolev1.Silent{Part: s.Part, Why: s.Why})
		}
	}
	return out
}
