package view

import (
	"strings"

	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// mirror is a reflection as it is shown.
func mirror(r *reflectorv1.Reflection) *consolev1.Mirror {
	m := &consolev1.Mirror{
		Health: consolev1.Health_HEALTH_WELL, State: word(r.GetState().String(), "REFLECTION_STATE_"), Revision: r.GetRevision().GetResourceVersion(),
		Objects: r.GetObjects(), Lag: r.GetLag(), Pending: r.GetPending(), Quarantined: r.GetQuarantinedTotal(), Relists: r.GetRelists(),
		Reason: r.GetReason(), LastError: r.GetLastError(), SourceSeenAt: r.GetSourceSeenAt(), Leader: r.GetLeader(), Listed: r.GetList().GetObjects(),
	}
	switch r.GetState() {
	case reflectorv1.ReflectionState_REFLECTION_STATE_WATCHING, reflectorv1.ReflectionState_REFLECTION_STATE_STANDBY:
		if m.GetQuarantined() > 0 || m.GetReason() != "" {
			m.Health = consolev1.Health_HEALTH_WARNING
		}
	case reflectorv1.ReflectionState_REFLECTION_STATE_REBUILDING, reflectorv1.ReflectionState_REFLECTION_STATE_LISTING:
		m.Health = consolev1.Health_HEALTH_WARNING
	default:
		m.Health = consolev1.Health_HEALTH_FAILING
	}
	return m
}

// served is a collection as it is shown.
func served(c *indexv1.CollectionStatus) *consolev1.Served {
	s := &consolev1.Served{
		Health: consolev1.Health_HEALTH_WELL, State: "serving", Revision: c.GetRevision().GetResourceVersion(), Objects: c.GetObjects(),
		LagRecords: c.GetLagRecords(), LiveAt: c.GetLiveAt(), Quarantined: c.GetQuarantined(), MemoryBytes: c.GetMemoryBytes(), Watchers: c.GetWatchers(),
		LastError: c.GetLastError(), Namespaced: c.GetScope() == indexv1.KeyScope_KEY_SCOPE_NAMESPACED, Names: c.GetNames(),
	}
	switch {
	case !c.GetSynced():
		s.State, s.Health = "not synced", consolev1.Health_HEALTH_FAILING
	case c.GetLagging():
		s.State, s.Health = "lagging", consolev1.Health_HEALTH_FAILING
	case c.GetStale():
		s.State, s.Health = "stale", consolev1.Health_HEALTH_FAILING
	case c.GetLastError() != "" || c.GetQuarantined() > 0:
		s.Health = consolev1.Health_HEALTH_WARNING
	case c.GetWarmStart():
		s.State = "warm start"
	}
	return s
}

// summary is a queue as it is shown. Workers may be nil.
func summary(q *queuev1.QueueStatus, workers *consolev1.Workers) *consolev1.QueueSummary {
	c := q.GetCounts()
	s := &consolev1.QueueSummary{
		Queue: q.GetConfig().GetName(), Health: consolev1.Health_HEALTH_WELL, Ready: c.GetReady(), Delayed: c.GetDelayed(), Processing: c.GetProcessing(),
		Dirty: c.GetDirty(), Dead: c.GetDead(), OldestReady: q.GetOldestReady(), Paused: q.GetPaused(), Closed: q.GetClosed(), HeldUntil: q.GetHeldUntil(),
		Unreachable: q.GetUnreachable(), Workers: workers,
	}
	switch {
	case len(s.GetUnreachable()) > 0, workers != nil && workers.GetConnected() == 0 && s.GetReady() > 0:
		s.Health = consolev1.Health_HEALTH_FAILING
	case s.GetPaused(), s.GetClosed(), s.GetDead() > 0, s.GetHeldUntil() != nil:
		s.Health = consolev1.Health_HEALTH_WARNING
	}
	return s
}

// word is a value of an enum for people.
func word(value, prefix string) string { return strings.ToLower(strings.TrimPrefix(value, prefix)) }
