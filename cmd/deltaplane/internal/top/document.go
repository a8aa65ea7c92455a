package top

import (
	"cmp"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/core/meter"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// mostKeys is how many keys of a kind a document has.
const mostKeys = 50

// A Document is the flow at one time. Rates are by the second and times in seconds; those that are
// not known are null, as every rate of the first look is.
type Document struct {
	Time        time.Time    `json:"time"`
	Reflections []Reflection `json:"reflections"`
	Collections []Collection `json:"collections"`
	Queues      []Queue      `json:"queues"`
	// Held are the keys that are held longest, and Backoffs those in back-off after most failures.
	Held     []Key `json:"held"`
	Backoffs []Key `json:"backoffs"`
	// Unlooked is how many held and delayed keys were not looked at.
	Unlooked int64     `json:"keys_not_looked_at"`
	Silent   []Silence `json:"silent"`
}

// Reflection is one from the API server to the log.
type Reflection struct {
	Collection string   `json:"collection"`
	State      string   `json:"state"`
	Changes    *float64 `json:"changes_per_second"`
	Lag        float64  `json:"lag_seconds"`
	Pending    int64    `json:"pending"`
	Objects    int64    `json:"objects"`
	Error      string   `json:"error,omitempty"`
}

// Collection is one from the log to the index: the rate at which its log grows and the one at which
// the index applies it.
type Collection struct {
	Collection string   `json:"collection"`
	State      string   `json:"state"`
	Log        *float64 `json:"log_records_per_second"`
	Applied    *float64 `json:"applied_records_per_second"`
	Lag        int64    `json:"lag_records"`
	Heard      *float64 `json:"heard_seconds_ago"`
	Watchers   int64    `json:"watchers"`
	Objects    int64    `json:"objects"`
	Memory     int64    `json:"memory_bytes"`
	Error      string   `json:"error,omitempty"`
}

// Queue is one with what is added to it and settled. Wait and Work are means of what was leased and
// settled since the last look.
type Queue struct {
	Queue   string   `json:"queue"`
	Ready   int64    `json:"ready"`
	Delayed int64    `json:"delayed"`
	Leased  int64    `json:"leased"`
	Dead    int64    `json:"dead"`
	Adds    *float64 `json:"adds_per_second"`
	Settles *float64 `json:"settlements_per_second"`
	Wait    *float64 `json:"wait_seconds"`
	Work    *float64 `json:"work_seconds"`
	Oldest  float64  `json:"oldest_ready_seconds"`
	State   string   `json:"state"`
}

// Key is one that is held or waits.
type Key struct {
	Queue   string   `json:"queue"`
	Key     string   `json:"key"`
	Held    *float64 `json:"held_seconds,omitempty"`
	Holder  string   `json:"holder,omitempty"`
	Due     *float64 `json:"due_in_seconds,omitempty"`
	Retries int64    `json:"retries"`
	Reason  string   `json:"last_reason,omitempty"`
}

// Silence is a part that did not answer, and why.
type Silence struct {
	Part    string `json:"part"`
	Address string `json:"address"`
	Why     string `json:"why"`
	err     error
}

// document makes of a sample what it says, with rates since the samples before.
func document(m meter.Set, s *sample) *Document {
	d := &Document{
		Time: s.at, Reflections: []Reflection{}, Collections: []Collection{}, Queues: []Queue{}, Held: []Key{}, Backoffs: []Key{},
		Unlooked: s.unlooked, Silent: show.OrEmpty(s.silent),
	}
	for _, r := range s.reflections.GetReflections() {
		d.Reflections = append(d.Reflections, Reflection{
			Collection: r.GetCollection(), State: show.ReflectionState(r), Changes: m.Rate("published "+r.GetCollection(), s.at, r.GetPublished(), 0),
			Lag: r.GetLag().AsDuration().Seconds(), Pending: r.GetPending(), Objects: r.GetObjects(), Error: r.GetLastError(),
		})
	}
	for _, c := range s.collections.GetCollections() {
		at := c.GetPosition()
		one := Collection{
			Collection: c.GetCollection(), State: show.CollectionState(c), Lag: c.GetLagRecords(),
			Log:     m.Rate("log "+c.GetCollection(), s.at, int64(at.GetSequence())+c.GetLagRecords(), at.GetEpoch()),
			Applied: m.Rate("applied "+c.GetCollection(), s.at, int64(at.GetSequence()), at.GetEpoch()),
			Objects: c.GetObjects(), Watchers: c.GetWatchers(), Memory: c.GetMemoryBytes(), Error: c.GetLastError(),
		}
		if c.GetLiveAt() != nil {
			one.Heard = new(max(s.at.Sub(c.GetLiveAt().AsTime()), 0).Seconds())
		}
		d.Collections = append(d.Collections, one)
	}
	for _, q := range s.queues.GetQueues() {
		c, name := q.GetCounts(), q.GetConfig().GetName()
		one := Queue{
			Queue: name, Ready: c.GetReady(), Delayed: c.GetDelayed(), Leased: c.GetProcessing() + c.GetDirty(), Dead: c.GetDead(),
			Oldest: q.GetOldestReady().AsDuration().Seconds(), State: show.QueueState(q),
		}
		did(m, &one, s.at, q.GetActivity())
		d.Queues = append(d.Queues, one)
	}
	for _, it := range s.held {
		key := keyOf(it)
		if it.GetLeasedAt() != nil {
			key.Held = new(max(s.at.Sub(it.GetLeasedAt().AsTime()), 0).Seconds())
		}
		d.Held = append(d.Held, key)
	}
	for _, it := range s.backoffs {
		if it.GetNumRequeues() == 0 {
			continue // a delay that was asked for
		}
		key := keyOf(it)
		key.Due = new(max(it.GetDelayedUntil().AsTime().Sub(s.at), 0).Seconds())
		d.Backoffs = append(d.Backoffs, key)
	}
	slices.SortFunc(d.Held, func(a, b Key) int { return cmp.Or(cmp.Compare(number(b.Held), number(a.Held)), byName(a, b)) })
	slices.SortFunc(d.Backoffs, func(a, b Key) int { return cmp.Or(cmp.Compare(b.Retries, a.Retries), byName(a, b)) })
	d.Held, d.Backoffs = d.Held[:min(len(d.Held), mostKeys)], d.Backoffs[:min(len(d.Backoffs), mostKeys)]
	m.Forget(s.at)
	return d
}

func keyOf(it item) Key {
	return Key{Queue: it.queue, Key: it.GetKey(), Holder: it.GetHolder(), Retries: it.GetNumRequeues(), Reason: it.GetLastReason()}
}

func byName(a, b Key) int { return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Key, b.Key)) }

// did adds to a queue what its servers did. Each look may be answered by another server, so each
// counts by itself, and those that answered lately add up.
func did(m meter.Set, q *Queue, at time.Time, a *queuev1.QueueActivity) {
	if a != nil {
		name, since := "queue "+q.Queue, a.GetSince().AsTime().UnixNano()
		m.Count(name, since, at, meter.Reading{
			a.GetAdds(), a.GetLeases(), a.GetSettlements(), a.GetWaited().AsDuration().Microseconds(), a.GetWorked().AsDuration().Microseconds(),
		})
	}
	f, known := m.Flow("queue "+q.Queue, at)
	if !known {
		return
	}
	q.Adds, q.Settles = new(f[0]), new(f[2])
	if f[1] > 0 {
		q.Wait = new(f[3] / f[1] / 1e6)
	}
	if f[2] > 0 {
		q.Work = new(f[4] / f[2] / 1e6)
	}
}
