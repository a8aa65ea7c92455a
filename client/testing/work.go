package testing

import (
	"cmp"
	"sync"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// workStream is a Work stream of a worker.
type workStream struct {
	*breakable
	k *keys

	mu     sync.Mutex // guards the rest
	queues []string   // of the hello
	over   bool
}

// begun notes that the queues have a worker.
func (s *workStream) begun(queues []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queues != nil || s.over {
		return
	}
	s.queues = queues
	s.k.activity.work(queues, 1)
}

func (s *workStream) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.k.activity.work(s.queues, -1)
}

// SendMsg implements grpc.ClientStream.
func (s *workStream) SendMsg(m any) error {
	req, ok := m.(*queuev1.WorkRequest)
	if !ok {
		return s.breakable.SendMsg(m)
	}
	if hello := req.GetHello(); hello != nil {
		s.begun(hello.GetQueues())
	}
	if s.k.settling(s.ctx, req.GetSettle().GetSettlements()) {
		s.tear()
	}
	return s.breakable.SendMsg(m)
}

// RecvMsg implements grpc.ClientStream.
func (s *workStream) RecvMsg(m any) error {
	if err := s.breakable.RecvMsg(m); err != nil {
		return err
	}
	resp, ok := m.(*queuev1.WorkResponse)
	if !ok {
		return nil
	}
	if resp.GetWelcome() != nil {
		s.k.activity.begin(&s.k.activity.queue)
	}
	for _, lease := range resp.GetAssign().GetLeases() {
		s.k.leased(cmp.Or(lease.GetQueue(), resp.GetAssign().GetQueue()), lease.GetKey(), lease.GetToken())
	}
	return nil
}

// produceStream is a Produce stream of a producer.
type produceStream struct {
	*breakable
	k *keys
}

// SendMsg implements grpc.ClientStream.
func (s *produceStream) SendMsg(m any) error {
	req, ok := m.(*queuev1.ProduceRequest)
	if !ok {
		return s.breakable.SendMsg(m)
	}
	var names []string
	for _, op := range req.GetBatch().GetOps() {
		switch op.GetKind() {
		case queuev1.ProduceKind_PRODUCE_KIND_FORGET, queuev1.ProduceKind_PRODUCE_KIND_NUM_REQUEUES:
		default:
			names = append(names, op.GetKey())
		}
	}
	tear := s.k.adding(s.ctx, req.GetBatch().GetQueue(), names)
	err := s.breakable.SendMsg(m)
	if tear {
		s.tear()
	}
	return err
}
