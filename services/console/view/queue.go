package view

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

const (
	// mostRead is how many keys of a queue are read for one look at most, and pageOf how many at a
	// time.
	mostRead = 10_000
	pageOf   = 1000
)

// Queue shows one queue and a range of its keys.
func (h *Hub) Queue(_ context.Context, v *consolev1.QueueView, changed func()) (Reader, error) {
	if v.GetQueue() == "" {
		return nil, rpc.InvalidArgument("queue", "is required")
	}
	if err := checkRange(v.GetLimit()); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("queue\x00%s\x00%d\x00%s\x00%d\x00%d", v.GetQueue(), v.GetState(), v.GetText(), v.GetOffset(), v.GetLimit())
	return h.polled(name, changed, func() *poll {
		p := newPoll(func(ctx context.Context) (*consolev1.OpenResponse, error) {
			out, err := h.queue(ctx, v)
			if err != nil {
				return nil, err
			}
			return &consolev1.OpenResponse{Content: &consolev1.OpenResponse_Queue{Queue: out}}, nil
		})
		if v.GetText() != "" { // a search reads many keys
			p.every = 3 * every
		}
		return p
	})
}

func (h *Hub) queue(ctx context.Context, v *consolev1.QueueView) (*consolev1.Queue, error) {
	// The key that is asked for may be one of a search: then it is the first answer.
	answer, err := h.queues.Inspect(ctx, &queuev1.InspectRequest{Queue: v.GetQueue(), Key: cmp.Or(v.GetText(), anyKey), Surroundings: true})
	if err != nil {
		return nil, err
	}
	s := answer.GetSurroundings()
	out := &consolev1.Queue{
		Summary: summary(s.GetQueue(), workersOf(s)), Offset: v.GetOffset(), Settings: settings(s.GetQueue().GetConfig()),
		StoreTime: wholeSeconds(s.GetStoreTime()), RefusesAdds: s.GetRefusesAdds(),
	}
	var exact *queuev1.Item
	if item := answer.GetItem(); v.GetText() != "" && known(item) && (v.GetState() == 0 || keyState(item.GetState()) == v.GetState()) {
		exact = item
	}
	chosen, read, more, err := h.read(ctx, v, exact)
	if err != nil {
		return nil, err
	}
	from := min(int(v.GetOffset()), len(chosen))
	for _, item := range chosen[from:min(from+int(v.GetLimit()), len(chosen))] {
		out.Keys = append(out.Keys, queueKey(item))
	}
	out.Total, out.More = uint32(len(chosen)), more //nolint:gosec // they are few
	out.Latencies = latencies(read, s.GetStoreTime().AsTime())
	return out, nil
}

// read reads keys of a queue until the range is full: those that the view chooses, in the order of
// the queue, the exact one first; and all that were read.
func (h *Hub) read(ctx context.Context, v *consolev1.QueueView, exact *queuev1.Item) (chosen, all []*queuev1.Item, more bool, err error) {
	if exact != nil {
		chosen = append(chosen, exact)
	}
	ask := &queuev1.ListItemsRequest{Queue: v.GetQueue(), State: queuev1.State(v.GetState()), PageSize: pageOf, Partial: true}
	for {
		page, err := h.queues.ListItems(ctx, ask)
		if err != nil {
			return nil, nil, false, err
		}
		all = append(all, page.GetItems()...)
		for _, item := range page.GetItems() {
			if strings.Contains(item.GetKey(), v.GetText()) && item.GetKey() != exact.GetKey() {
				chosen = append(chosen, item)
			}
		}
		ask.PageToken = page.GetNextPageToken()
		enough := v.GetText() == "" && len(chosen) >= int(v.GetOffset()+v.GetLimit())
		if ask.GetPageToken() == "" || enough || len(all) >= mostRead {
			return chosen, all, ask.GetPageToken() != "" || len(page.GetUnreachable()) > 0, nil
		}
	}
}

// known reports whether a queue knows anything of a key.
func known(i *queuev1.Item) bool {
	return i.GetState() != queuev1.State_STATE_IDLE && i.GetState() != queuev1.State_STATE_UNSPECIFIED ||
		len(i.GetBarrier()) > 0 || i.GetNumRequeues() > 0 || i.GetLastReason() != "" || i.GetStateBytes() > 0
}

// keyState is a state as pages know it: the numbers of both contracts are the same.
func keyState(s queuev1.State) consolev1.KeyState { return consolev1.KeyState(s) }

func queueKey(i *queuev1.Item) *consolev1.QueueKey {
	return &consolev1.QueueKey{
		Key: i.GetKey(), State: keyState(i.GetState()), Holder: i.GetHolder(), Deadline: i.GetDeadline(), AddedAt: i.GetAddedAt(), ReadyAt: i.GetReadyAt(),
		DelayedUntil: i.GetDelayedUntil(), Requeues: i.GetNumRequeues(), Attempt: i.GetAttempt(), Priority: i.GetPriority(), LastReason: i.GetLastReason(),
	}
}

// wholeSeconds keeps a clock from making each answer another one.
func wholeSeconds(t *timestamppb.Timestamp) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return &timestamppb.Timestamp{Seconds: t.GetSeconds()}
}

// latencies are how long keys have waited and been held, by the store's clock.
func latencies(items []*queuev1.Item, now time.Time) (out []*consolev1.Latency) {
	took := map[string][]time.Duration{}
	for _, i := range items {
		switch i.GetState() {
		case queuev1.State_STATE_READY:
			if i.GetReadyAt() != nil {
				took["ready"] = append(took["ready"], now.Sub(i.GetReadyAt().AsTime()))
			}
		case queuev1.State_STATE_PROCESSING, queuev1.State_STATE_DIRTY:
			if i.GetLeasedAt() != nil {
				took["processing"] = append(took["processing"], now.Sub(i.GetLeasedAt().AsTime()))
			}
		case queuev1.State_STATE_DELAYED:
			if due := i.GetDelayedUntil(); due != nil && due.AsTime().Before(now) {
				took["overdue"] = append(took["overdue"], now.Sub(due.AsTime()))
			}
		default:
		}
	}
	for _, of := range []string{"ready", "processing", "overdue"} {
		all := took[of]
		if len(all) == 0 {
			continue
		}
		slices.Sort(all)
		at := func(share int) *durationpb.Duration { return durationpb.New(max(all[(len(all)-1)*share/100], 0)) }
		out = append(out, &consolev1.Latency{Of: of, Keys: int64(len(all)), P50: at(50), P99: at(99), Max: at(100)})
	}
	return out
}
