package explain

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/why"
	"github.com/deltaplane/deltaplane/core/workqueue"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// fromQueue takes in what the queue says of a key.
func fromQueue(f *why.Facts, in *queuev1.InspectResponse) {
	f.QueueKnown = true
	i := in.GetItem()
	f.Item = why.Item{
		Holder: i.GetHolder(), Deadline: at(i.GetDeadline()), Requeues: int(i.GetNumRequeues()), Attempt: int(i.GetAttempt()), Priority: int(i.GetPriority()),
		AddedAt: at(i.GetAddedAt()), ReadyAt: at(i.GetReadyAt()), DelayedUntil: at(i.GetDelayedUntil()), Barrier: barrier(i.GetBarrier()),
		Reason: i.GetLastReason(), Holders: i.GetLastHolders(),
	}
	f.Item.State = states[i.GetState()]
	for _, e := range in.GetHistory() {
		f.History = append(f.History, why.Event{
			Kind: kinds[e.GetKind()], At: at(e.GetTime()), Session: e.GetSessionId(), Outcome: outcomes[e.GetOutcome()],
			Reason: e.GetReason(), Held: e.GetHeld().AsDuration(), Repeats: int(e.GetRepeats()), Cause: barrier(e.GetBarrier()), Writes: writes(e.GetWrites()),
		})
	}
	s := in.GetSurroundings()
	q := s.GetQueue()
	f.Config = config(q.GetConfig())
	c := q.GetCounts()
	f.Counts = workqueue.Counts{
		Ready: int(c.GetReady()), Delayed: int(c.GetDelayed()), Processing: int(c.GetProcessing()), Dirty: int(c.GetDirty()), Dead: int(c.GetDead()),
	}
	f.Paused, f.Closed, f.HeldUntil = q.GetPaused(), q.GetClosed(), at(q.GetHeldUntil())
	f.StoreTime, f.Workers, f.Free, f.RefusesAdds = at(s.GetStoreTime()), int(s.GetWorkers()), int(s.GetWorkersFree()), s.GetRefusesAdds()
	if h := s.GetHolder(); h != nil {
		f.Holder = &why.Holder{Connected: h.GetConnected(), Client: h.GetClient(), Lease: h.GetLease().AsDuration()}
	}
	if step := s.GetClockStep(); step != nil {
		f.Step = &why.Step{At: at(step.GetTime()), By: step.GetCorrected().AsDuration()}
	}
}

var kinds = map[queuev1.EventKind]why.EventKind{
	queuev1.EventKind_EVENT_KIND_ADDED: why.Added, queuev1.EventKind_EVENT_KIND_LEASED: why.Leased, queuev1.EventKind_EVENT_KIND_SETTLED: why.Settled,
	queuev1.EventKind_EVENT_KIND_LOST: why.Lost, queuev1.EventKind_EVENT_KIND_OPERATOR: why.Operator,
}

// into takes in what index and reflector say.
func (s *said) into(f *why.Facts) {
	if s.collections != nil {
		f.Collections = []why.Collection{}
	}
	for _, c := range s.collections.GetCollections() {
		f.Collections = append(f.Collections, why.Collection{
			Name: c.GetCollection(), Synced: c.GetSynced(), Revision: revision(c.GetRevision()), Lag: c.GetLagRecords(), LiveAt: at(c.GetLiveAt()),
			Stale: c.GetStale(), Frozen: at(c.GetFrozenSince()), LastError: c.GetLastError(),
		})
	}
	for _, r := range s.reflections.GetReflections() {
		well := r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_WATCHING || r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_STANDBY
		f.Reflections = append(f.Reflections, why.Reflection{
			Collection: r.GetCollection(), Revision: revision(r.GetRevision()), Well: well, Reason: r.GetReason(), LastError: r.GetLastError(),
		})
	}
}

func writes(in []*queuev1.Write) (out []why.Write) {
	for _, w := range in {
		out = append(out, why.Write{Verb: w.GetVerb(), Collection: w.GetCollection(), Key: w.GetKey(), RV: w.GetResourceVersion()})
	}
	return out
}

func at(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func revision(r *deltav1.Revision) delta.Revision {
	return delta.Revision{Epoch: r.GetEpoch(), RV: r.GetResourceVersion()}
}

func barrier(in []*deltav1.CollectionRevision) (out workqueue.Barrier) {
	for _, m := range in {
		out = append(out, workqueue.Mark{Collection: m.GetCollection(), Epoch: m.GetRevision().GetEpoch(), RV: m.GetRevision().GetResourceVersion()})
	}
	return out
}
