package admin

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Inspect implements the QueueAdminService.
func (s *Server) Inspect(ctx context.Context, r *queuev1.InspectRequest) (*queuev1.InspectResponse, error) {
	c := &wire.Checks{}
	c.Queue("queue", r.GetQueue())
	c.Key("key", r.GetKey())
	if err := c.Err(); err != nil {
		return nil, err
	}
	done, err := s.Queues.Do(ctx, r.GetQueue(), workqueue.Op{Kind: workqueue.OpInspect, Key: r.GetKey()})
	if err != nil {
		return nil, err
	}
	item := done.Replies[0].Item
	out := &queuev1.InspectResponse{Item: wire.Item(item), History: s.History.Key(r.GetQueue(), r.GetKey())}
	if r.GetSurroundings() {
		out.Surroundings, err = s.surroundings(ctx, r.GetQueue(), item, done.Now)
	}
	return out, err
}

// surroundings are what decides beside a key when it runs.
func (s *Server) surroundings(ctx context.Context, queue string, item *workqueue.Item, now int64) (*queuev1.Surroundings, error) {
	cfg, st, missing, err := s.Look.status(ctx, queue)
	if err != nil {
		return nil, err
	}
	out := &queuev1.Surroundings{Queue: queueStatus(queue, cfg, st, missing), StoreTime: wire.Stamp(now)}
	if err := s.Limit(); err != nil {
		out.RefusesAdds = rpc.Reason(rpc.Status(err, wire.Rules))
	}
	l, ok := s.Queues.Known(queue)
	if !ok { // it was deleted meanwhile
		return out, nil
	}
	out.Workers, out.WorkersFree = s.Sessions.Workers(l)
	if item.Holder != "" {
		out.Holder = s.Sessions.Holder(item.Holder, l.At(item.Key), item.Key)
	}
	if step := l.Step.Load(); step != nil {
		out.ClockStep = &queuev1.ClockStep{Time: wire.Stamp(step.Now), Corrected: wire.Span(step.By)}
	}
	return out, nil
}

// listed are the states ListItems takes.
var listed = map[queuev1.State]workqueue.State{
	queuev1.State_STATE_UNSPECIFIED: workqueue.Idle, queuev1.State_STATE_READY: workqueue.Ready,
	queuev1.State_STATE_DELAYED: workqueue.Waiting, queuev1.State_STATE_PROCESSING: workqueue.Processing,
	queuev1.State_STATE_DIRTY: workqueue.Dirty, queuev1.State_STATE_DEAD: workqueue.StateDead,
}

// ListItems implements the QueueAdminService.
func (s *Server) ListItems(ctx context.Context, r *queuev1.ListItemsRequest) (*queuev1.ListItemsResponse, error) {
	c := &wire.Checks{}
	c.Queue("queue", r.GetQueue())
	c.Count("page_size", int(r.GetPageSize()), 0, wire.MaxPage)
	want, known := listed[r.GetState()]
	if !known {
		c.Add("state", "%v cannot be listed", r.GetState())
	}
	from, err := parsePage(r.GetPageToken(), r.GetState())
	if err != nil {
		c.Errs = append(c.Errs, rpc.InvalidField("page_token", err))
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	size := int(r.GetPageSize())
	if size == 0 {
		size = wire.DefaultPage
	}
	out, err := s.list(ctx, r, want, from, size)
	if errors.Is(err, engine.ErrCursor) {
		return nil, rpc.InvalidField("page_token", err)
	}
	return out, err
}

// page is a place in a list: a cursor of the engine, for how many keys the engine
// was asked there (zero when it was not yet), and the last key of that page that
// was sent.
type page struct {
	state  queuev1.State
	limit  int
	cursor string
	after  string
}

// list gathers pages of the engine until there are size keys, or about as many
// bytes as an answer may have. A page that does not fit is read again for the
// next answer, so each is sorted.
func (s *Server) list(ctx context.Context, r *queuev1.ListItemsRequest, state workqueue.State, at page, size int) (*queuev1.ListItemsResponse, error) {
	queue := r.GetQueue()
	out, bytes := &queuev1.ListItemsResponse{}, 0
	for {
		at.limit = cmp.Or(at.limit, min(size, itemsPage)) // read again, it must be the same page
		items, next, missing, err := s.Look.items(ctx, queue, state, at.cursor, at.limit)
		if err == nil && !r.GetPartial() {
			err = complete(queue, missing)
		}
		if err != nil {
			return nil, err
		}
		for _, p := range missing {
			if !slices.Contains(out.GetUnreachable(), p) {
				out.Unreachable = append(out.Unreachable, p)
			}
		}
		slices.SortFunc(items, func(a, b workqueue.Item) int { return strings.Compare(a.Key, b.Key) })
		for i := range items {
			if items[i].Key <= at.after {
				continue
			}
			it := wire.Item(&items[i])
			if r.GetWithState() {
				it.SavedState = items[i].Data
			}
			bytes += proto.Size(it)
			if n := len(out.GetItems()); n == size || n > 0 && bytes > wire.MaxAssignBytes {
				out.NextPageToken = at.String()
				return out, nil
			}
			out.Items = append(out.Items, it)
			at.after = it.GetKey()
		}
		at.limit, at.cursor, at.after = 0, next, ""
		if next == "" {
			return out, nil
		}
		if len(out.GetItems()) == size {
			out.NextPageToken = at.String()
			return out, nil
		}
	}
}

// String is the place as a token.
func (p page) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(
		strconv.Itoa(int(p.state)) + " " + strconv.Itoa(p.limit) + " " + strconv.Itoa(len(p.cursor)) + " " + p.cursor + p.after,
	))
}

// parsePage reads a token; empty is the beginning.
func parsePage(token string, state queuev1.State) (page, error) {
	if token == "" {
		return page{state: state}, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	kind, rest, _ := strings.Cut(string(raw), " ")
	most, rest, _ := strings.Cut(rest, " ")
	size, rest, ok := strings.Cut(rest, " ")
	limit, odd := strconv.Atoi(most)
	n, bad := strconv.Atoi(size)
	switch {
	case err != nil || !ok || odd != nil || limit < 0 || limit > itemsPage || bad != nil || n < 0 || n > len(rest) || rest == "":
		return page{}, engine.ErrCursor
	case kind != strconv.Itoa(int(state)):
		return page{}, errors.New("the token is of a list of another state")
	}
	return page{state, limit, rest[:n], rest[n:]}, nil
}
