package work

import (
	"context"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
)

// push queues a message for the sender.
func (st *stream) push(m any) {
	st.mu.Lock()
	st.out.messages = append(st.out.messages, m)
	st.mu.Unlock()
	st.Wake()
}

// control queues a control message.
func (st *stream) control(c *queuev1.Control) {
	st.push(&queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Control{Control: c}})
}

func (st *stream) Wake() {
	select {
	case st.signal <- struct{}{}:
	default:
	}
}

// send is the one sender of the stream. What gathered while a message was under
// way leaves together.
func (st *stream) send(ctx context.Context) {
	var out outbox
	for {
		st.mu.Lock()
		out, st.out = st.out, out
		over := st.draining && st.live <= 0 && out.empty() && !st.ss.ShutDown()
		if !out.empty() {
			st.sending = time.Now()
		}
		st.mu.Unlock()
		if over {
			st.Close(errOver)
			return
		}
		if out.empty() {
			select {
			case <-st.signal:
				continue
			case <-ctx.Done():
				return
			case <-st.done:
				return
			}
		}
		if err := out.send(st.grpc); err != nil {
			st.Close(err)
			return
		}
		st.mu.Lock()
		st.sending = time.Time{}
		behind := st.out.bytes > maxUnsent
		st.mu.Unlock()
		select {
		case st.room <- struct{}{}:
		default:
		}
		if out.bytes > maxUnsent && !behind {
			transaction.RejoinAll(st.credit.Block(false))
		}
		out.reset()
	}
}
