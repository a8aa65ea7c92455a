package queue

import (
	"context"
	"slices"

	"github.com/deltaplane/deltaplane/internal/authority"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// The resources that rights are granted to; their objects have the queues' names.
const (
	queues   = "queues"
	backoffs = "backoffs"
)

// right is what a unary call takes, on the queue that its request names.
type right struct{ resource, verb string }

// rights are those of all unary calls. Sessions belong to their callers already: to end one takes
// none.
var rights = map[string]right{
	queuev1.QueueService_Add_FullMethodName:                 {queues, wire.VerbAdd},
	queuev1.QueueService_AddAfter_FullMethodName:            {queues, wire.VerbAdd},
	queuev1.QueueService_AddRateLimited_FullMethodName:      {queues, wire.VerbAdd},
	queuev1.QueueService_Forget_FullMethodName:              {queues, wire.VerbAdd},
	queuev1.QueueService_NumRequeues_FullMethodName:         {queues, wire.VerbGet},
	queuev1.QueueService_Len_FullMethodName:                 {queues, wire.VerbGet},
	queuev1.QueueService_Get_FullMethodName:                 {queues, wire.VerbWork},
	queuev1.QueueService_Settle_FullMethodName:              {queues, wire.VerbWork},
	queuev1.QueueService_Extend_FullMethodName:              {queues, wire.VerbWork},
	queuev1.QueueService_SaveState_FullMethodName:           {queues, wire.VerbWork},
	queuev1.QueueService_Expect_FullMethodName:              {queues, wire.VerbWork},
	queuev1.QueueService_Observe_FullMethodName:             {queues, wire.VerbWork},
	queuev1.QueueService_GetExpectations_FullMethodName:     {queues, wire.VerbGet},
	queuev1.QueueService_DeleteExpectations_FullMethodName:  {queues, wire.VerbWork},
	queuev1.QueueService_ShutDown_FullMethodName:            {},
	queuev1.QueueService_ShutDownWithDrain_FullMethodName:   {},
	queuev1.QueueAdminService_ConfigureQueue_FullMethodName: {queues, wire.VerbAdminister},
	queuev1.QueueAdminService_ListQueues_FullMethodName:     {queues, wire.VerbList},
	queuev1.QueueAdminService_DeleteQueue_FullMethodName:    {queues, wire.VerbAdminister},
	queuev1.QueueAdminService_CloseQueue_FullMethodName:     {queues, wire.VerbAdminister},
	queuev1.QueueAdminService_OpenQueue_FullMethodName:      {queues, wire.VerbAdminister},
	queuev1.QueueAdminService_PauseQueue_FullMethodName:     {queues, wire.VerbAdminister},
	queuev1.QueueAdminService_ResumeQueue_FullMethodName:    {queues, wire.VerbAdminister},
	queuev1.QueueAdminService_Inspect_FullMethodName:        {queues, wire.VerbGet},
	queuev1.QueueAdminService_ListItems_FullMethodName:      {queues, wire.VerbGet},
	queuev1.QueueAdminService_RetryNow_FullMethodName:       {queues, wire.VerbAdminister},
	queuev1.QueueAdminService_ReleaseItems_FullMethodName:   {queues, wire.VerbAdminister},
	queuev1.QueueAdminService_DeleteItems_FullMethodName:    {queues, wire.VerbAdminister},
	queuev1.QueueAdminService_RestoreItems_FullMethodName:   {queues, wire.VerbAdminister},
	queuev1.BackoffService_Get_FullMethodName:               {backoffs, wire.VerbGet},
	queuev1.BackoffService_Next_FullMethodName:              {backoffs, wire.VerbUpdate},
	queuev1.BackoffService_Reset_FullMethodName:             {backoffs, wire.VerbUpdate},
}

// permits asks the authority about the calls of a queue server.
type permits struct {
	authority *authority.Authority
	sessions  *session.Sessions
}

// call decides about a unary call. Calls of other services, such as health, are not its own.
func (p permits) call(ctx context.Context, method string, req any) error {
	r, ok := rights[method]
	if p.authority == nil || !ok || r.verb == "" {
		return nil
	}
	if list, ok := req.(*queuev1.ListItemsRequest); ok && list.GetWithState() {
		r.verb = wire.VerbAdminister // saved state is between workers
	}
	names := p.named(ctx, req)
	wants := make([]authority.Want, len(names))
	for i, name := range names {
		wants[i] = authority.Named(r.verb, r.resource, name)
	}
	return p.authority.Allow(ctx, wants...)
}

// named are the queues that a request is about.
func (p permits) named(ctx context.Context, req any) (names []string) {
	switch r := req.(type) {
	case *queuev1.ConfigureQueueRequest:
		return []string{r.GetConfig().GetName()}
	case *queuev1.ListQueuesRequest:
		if r.GetPrefix() == "" {
			return []string{""}
		}
		return []string{r.GetPrefix() + "*"}
	case *queuev1.SettleRequest:
		for _, s := range r.GetSettlements() {
			names = append(names, s.GetQueue())
		}
	case *queuev1.ExtendRequest:
		refs := r.GetLeases()
		if len(refs) == 0 { // all that the session has
			if s := p.sessions.Find(wire.SessionID(ctx, r.GetSessionId())); s != nil {
				refs = s.OrAll(nil)
			}
		}
		for _, l := range refs {
			names = append(names, l.GetQueue())
		}
	case interface{ GetQueue() string }:
		return []string{r.GetQueue()}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// stream decides about a queue of a stream, which ends when its caller loses the right.
func (p permits) stream(ctx context.Context, verb, queue string) error {
	if p.authority == nil {
		return nil
	}
	return p.authority.Keep(ctx, authority.Named(verb, queues, queue))
}

// message decides about one message of a stream.
func (p permits) message(ctx context.Context, verb, queue string) error {
	if p.authority == nil {
		return nil
	}
	return p.authority.Allow(ctx, authority.Named(verb, queues, queue))
}
