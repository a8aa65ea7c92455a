package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/test/chaos/history"
)

const (
	workerKeys    = 24 // at a time
	maxUnanswered = 16 // batches; the server remembers the answers to 32
)

type leaseName struct {
	key   string
	token uint64
}

// tenure is a lease that a worker takes for its own until a moment of the shared clock.
type tenure struct {
	until int64
	stuck bool // its handler does not extend it
}

// settlement is a settlement that was decided upon, with the number of its operation.
type settlement struct {
	id int64
	s  *queuev1.Settlement
}

type batch struct {
	m   *queuev1.SettleBatch
	ids []int64
}

// chaosWorker works on keys by a Work stream, as the contract tells a worker
// to, and settles some of them too late on purpose.
type chaosWorker struct {
	*notes
	role role

	mu         sync.Mutex // guards what follows
	rng        *rand.Rand
	held       map[leaseName]*tenure
	decided    []settlement // not sent yet
	unanswered []batch
	request    uint64
	op         int64
	credit     int
	draining   bool
	stream     queuev1.QueueService_WorkClient
	asked      []extension // unanswered extensions of this stream
}

type extension struct {
	at   int64
	refs []leaseName
}

func (r role) work(ctx context.Context) error {
	n, err := openNotes(r.Log, r.Name)
	if err != nil {
		return err
	}
	w := &chaosWorker{notes: n, role: r, rng: rand.New(rand.NewPCG(r.Seed, 7)), held: map[leaseName]*tenure{}}
	linked, unlink := context.WithCancel(context.WithoutCancel(ctx))
	defer unlink()
	var group sync.WaitGroup
	group.Go(func() { w.link(linked) })
	group.Go(func() { w.tick(linked) })
	<-ctx.Done()
	w.mu.Lock()
	w.draining = true
	w.mu.Unlock()
	for limit := time.Now().Add(4 * leaseTime); time.Now().Before(limit) && !w.idle(); {
		<-time.After(10 * time.Millisecond)
	}
	unlink()
	group.Wait()
	return nil // handlers of lost leases may still write
}

func (w *chaosWorker) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.held) == 0 && len(w.unanswered) == 0 && len(w.decided) == 0
}

// link keeps a stream open to one server or another.
func (w *chaosWorker) link(ctx context.Context) {
	for at := w.rng.IntN(len(w.role.Servers)); ctx.Err() == nil; at++ {
		err := w.serve(ctx, w.role.Servers[at%len(w.role.Servers)])
		w.broken()
		if rpc.Reason(err) == "INVALID_ARGUMENT" || rpc.Reason(err) == "REQUEST_ID_TOO_OLD" || rpc.Reason(err) == "REQUEST_ID_REUSED" {
			w.note(history.Event{Kind: history.Left, Count: -1, Name: err.Error()}) // a worker that keeps to the contract is never told that
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (w *chaosWorker) serve(ctx context.Context, addr string) error {
	conn, err := rpc.Dial(addr, rpc.DialConfig{})
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timeout := time.AfterFunc(2*time.Second, cancel)
	s, err := queuev1.NewQueueServiceClient(conn).Work(ctx)
	if err != nil {
		return err
	}
	said := clock()
	if err := s.Send(w.hello()); err != nil {
		return errors.Join(err, recvError(s))
	}
	first, err := s.Recv()
	if err != nil {
		return err
	}
	timeout.Stop()
	if first.GetWelcome() == nil {
		return fmt.Errorf("a stream began with %v", first)
	}
	w.resume(s, first.GetWelcome(), said)
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		switch {
		case m.GetAssign() != nil:
			for _, l := range m.GetAssign().GetLeases() {
				w.leased(l)
			}
		case m.GetSettled() != nil:
			w.settled(m.GetSettled())
		case m.GetExtended() != nil:
			w.extended(m.GetExtended())
		case m.GetControl().GetAction() == queuev1.Action_ACTION_CANCEL:
			w.drop(m.GetControl().GetLeases())
		case m.GetControl().GetAction() == queuev1.Action_ACTION_RECONNECT:
			return errors.New("asked to go elsewhere")
		}
	}
}

func recvError(s queuev1.QueueService_WorkClient) error { _, err := s.Recv(); return err }

// hello resumes what is held.
func (w *chaosWorker) hello() *queuev1.WorkRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &queuev1.Hello{SessionId: w.role.Name, Client: "chaos", Queues: []string{queueName}, LeaseDuration: durationpb.New(leaseTime)}
	for name := range w.held {
		h.Resume = append(h.Resume, &queuev1.LeaseRef{Queue: queueName, Key: name.key, Token: name.token})
	}
	return &queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: h}}
}

// resume takes over a stream: what was kept is extended, what was not answered is sent again.
func (w *chaosWorker) resume(s queuev1.QueueService_WorkClient, m *queuev1.Welcome, said int64) {
	w.drop(m.GetLost())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stream, w.credit, w.asked = s, 0, nil
	for _, ref := range m.GetKept() {
		w.prolong(leaseName{ref.GetKey(), ref.GetToken()}, said+int64(leaseTime-margin))
	}
	for _, b := range w.unanswered {
		_ = s.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: b.m}}) // the reader has the error
	}
	w.flush()
}

// prolong moves the end of a tenure. The caller holds mu.
func (w *chaosWorker) prolong(name leaseName, until int64) {
	if t := w.held[name]; t != nil && t.until != until {
		t.until = until
		w.note(history.Event{Kind: history.Held, Key: name.key, Token: name.token, Until: until})
	}
}

// broken shortens every tenure: the server shortens the leases of a stream that broke.
func (w *chaosWorker) broken() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stream == nil {
		return
	}
	w.stream = nil
	limit := clock() + int64(afterCut)
	for name, t := range w.held {
		w.prolong(name, min(t.until, limit))
	}
}

func (w *chaosWorker) leased(l *queuev1.Lease) {
	now := clock()
	name := leaseName{l.GetKey(), l.GetToken()}
	deadline := l.GetDeadline().AsTime()
	e := history.Event{
		At: now, Kind: history.Leased, Key: name.key, Token: name.token,
		Granted: shared(deadline.Add(-leaseTime)), Until: now + int64(l.GetRemaining().AsDuration()-margin),
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.credit--
	if w.held[name] != nil {
		return // told twice
	}
	w.note(e)
	t := &tenure{until: e.Until}
	w.held[name] = t
	var takes time.Duration
	late := false
	switch p := w.rng.IntN(1000); {
	case w.draining || p < 700:
		takes = w.upTo(5 * time.Millisecond)
	case p < 930:
		takes = w.upTo(60 * time.Millisecond)
	case p < 980:
		takes = w.upTo(800 * time.Millisecond)
	case p < 992: // longer than its lease, extended
		takes = leaseTime + w.upTo(leaseTime)
	default: // hangs past its lease and settles all the same
		takes, t.stuck, late = leaseTime+w.upTo(leaseTime), true, true
	}
	time.AfterFunc(takes, func() { w.finish(name, late) })
}

func (w *chaosWorker) upTo(d time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(d)))
}

// finish decides how a lease ends; of a lease that is lost only sometimes, to be refused.
func (w *chaosWorker) finish(name leaseName, late bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.held[name]
	if (t == nil || clock() >= t.until) && !late && w.rng.IntN(4) > 0 {
		return
	}
	delete(w.held, name)
	s := &queuev1.Settlement{Queue: queueName, Key: name.key, Token: name.token, Outcome: queuev1.Outcome_OUTCOME_FORGET}
	if !w.draining {
		switch p := w.rng.IntN(100); {
		case p < 6:
			s.Outcome = queuev1.Outcome_OUTCOME_DONE
		case p < 10:
			s.Outcome = queuev1.Outcome_OUTCOME_RETRY_RATE_LIMITED
		case p < 13:
			s.Outcome, s.Delay = queuev1.Outcome_OUTCOME_RETRY_AFTER, durationpb.New(w.upTo(time.Second))
		case p < 15:
			s.Outcome, s.Delay = queuev1.Outcome_OUTCOME_RELEASE, durationpb.New(w.upTo(200*time.Millisecond))
		}
	}
	ends := s.GetOutcome() == queuev1.Outcome_OUTCOME_FORGET || s.GetOutcome() == queuev1.Outcome_OUTCOME_DONE
	w.op++
	e := history.Event{Kind: history.Invoke, Op: history.Settle, ID: w.op, Key: name.key, Token: name.token, Ends: ends, Delay: int64(s.GetDelay().AsDuration())}
	if s.GetOutcome() == queuev1.Outcome_OUTCOME_RETRY_RATE_LIMITED {
		e.Within = int64(limiterMax)
	}
	w.note(e)
	w.decided = append(w.decided, settlement{w.op, s})
	w.flush()
}

// flush sends what was decided, and asks for as many keys as there is room for. The caller holds
// mu.
func (w *chaosWorker) flush() {
	if w.stream == nil {
		return
	}
	for len(w.decided) > 0 && len(w.unanswered) < maxUnanswered {
		n := min(len(w.decided), 100)
		w.request++
		b := batch{m: &queuev1.SettleBatch{RequestId: w.request, HoldCredit: true}}
		for _, d := range w.decided[:n] {
			b.m.Settlements, b.ids = append(b.m.Settlements, d.s), append(b.ids, d.id)
		}
		w.decided = w.decided[n:]
		w.unanswered = append(w.unanswered, b)
		_ = w.stream.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: b.m}})
	}
	if want := workerKeys - len(w.held) - w.credit; want > 0 && !w.draining {
		w.credit += want
		_ = w.stream.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Credit{Credit: &queuev1.Credit{Items: int32(want)}}})
	}
}

var statuses = map[queuev1.SettleStatus]string{
	queuev1.SettleStatus_SETTLE_STATUS_SETTLED: history.StatusSettled, queuev1.SettleStatus_SETTLE_STATUS_REQUEUED: history.StatusRequeued,
	queuev1.SettleStatus_SETTLE_STATUS_LOST: history.StatusLost, queuev1.SettleStatus_SETTLE_STATUS_NOT_LEASED: history.StatusNotLeased,
}

func (w *chaosWorker) settled(m *queuev1.Settled) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, b := range w.unanswered {
		if b.m.GetRequestId() != m.GetRequestId() {
			continue
		}
		w.unanswered = append(w.unanswered[:i:i], w.unanswered[i+1:]...)
		for k, r := range m.GetResults() {
			w.note(history.Event{Kind: history.OK, Op: history.Settle, ID: b.ids[k], Key: r.GetKey(), Token: r.GetToken(), Status: statuses[r.GetStatus()]})
		}
		break
	}
	w.flush()
}

func (w *chaosWorker) extended(m *queuev1.Extended) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.asked) == 0 {
		return
	}
	x := w.asked[0]
	w.asked = w.asked[1:]
	lost := map[leaseName]bool{}
	for _, ref := range m.GetLost() {
		lost[leaseName{ref.GetKey(), ref.GetToken()}] = true
	}
	for _, name := range x.refs {
		if lost[name] {
			w.forget(name)
		} else {
			w.prolong(name, x.at+int64(m.GetRemaining().AsDuration()-margin))
		}
	}
	w.flush()
}

func (w *chaosWorker) drop(refs []*queuev1.LeaseRef) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ref := range refs {
		w.forget(leaseName{ref.GetKey(), ref.GetToken()})
	}
}

// forget no longer takes a lease for its own. The caller holds mu.
func (w *chaosWorker) forget(name leaseName) {
	if w.held[name] != nil {
		delete(w.held, name)
		w.note(history.Event{Kind: history.Dropped, Key: name.key, Token: name.token})
	}
}

// tick extends leases and gives up those whose time is over by the worker's own clock.
func (w *chaosWorker) tick(ctx context.Context) {
	const every = 20 * time.Millisecond
	extendAt := clock() + int64(leaseTime/4)
	for ticks := time.NewTicker(every); ; {
		select {
		case <-ctx.Done():
			ticks.Stop()
			return
		case <-ticks.C:
		}
		w.mu.Lock()
		now := clock()
		x := extension{at: now}
		m := &queuev1.ExtendBatch{}
		for name, t := range w.held {
			switch {
			case now >= t.until:
				w.forget(name)
			case !t.stuck:
				x.refs = append(x.refs, name)
				m.Leases = append(m.Leases, &queuev1.LeaseRef{Queue: queueName, Key: name.key, Token: name.token})
			}
		}
		if now >= extendAt && w.stream != nil && len(x.refs) > 0 {
			extendAt = now + int64(leaseTime/4)
			w.asked = append(w.asked, x)
			_ = w.stream.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: m}})
		}
		w.flush()
		w.mu.Unlock()
	}
}
