package job

import (
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/deltaplane/deltaplane/core/delta"
)

// Fixed times of the Job controller, as upstream.
const (
	podBackoff    = 10 * time.Second // first delay after a pod failure
	maxPodBackoff = 10 * time.Minute
	batchPeriod   = time.Second // delay of pod events

	// longestDeadline is the longest activeDeadlineSeconds that ends a Job, a hundred
	// years; a longer one never does, and would not fit a duration.
	longestDeadline = 100 * 365 * 24 * 3600
)

// Batching says how long the Jobs of a record wait to be synced:
// a Job that is new, gone or changed in its spec does not; a pod, or a change of
// status only, waits 1 s, so that bursts make one sync. A Batching remembers the
// generations of some Jobs; one it does not remember is not kept waiting. The zero
// value is ready, and safe for concurrent use.
type Batching struct {
	mu         sync.Mutex
	generation map[string]int64 // by UID
}

// Gathering is how long records of pods may be gathered, as all of them wait longer.
const Gathering = batchPeriod / 10

// maxGenerations bounds what a Batching remembers.
const maxGenerations = 10_000

// Delay is how long the Jobs of a record wait.
func (b *Batching) Delay(r *delta.Record) time.Duration {
	if r.Collection.Resource != "jobs" {
		return batchPeriod
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.Tombstone() || r.UID == "" {
		delete(b.generation, r.UID)
		return 0
	}
	if g, ok := b.generation[r.UID]; ok && g == r.Generation {
		return batchPeriod
	}
	if b.generation == nil || len(b.generation) >= maxGenerations {
		b.generation = map[string]int64{}
	}
	b.generation[r.UID] = r.Generation
	return 0
}

// Wakes names the keys to look at because of a pod's record:
// the Jobs that own it or have owned it, and, when nobody controls it, those whose
// name it carries as a label, which adopt it or clean it up, and the [OrphansKey]
// of its namespace. All means that the record cannot tell. Jobs that have owned
// the pod come from the record's history, so a change of owner wakes both.
func Wakes(r *delta.Record) (keys []string, all bool) {
	namespace, _, err := r.Key.Split()
	if err != nil || namespace == "" {
		return nil, false
	}
	seen := map[string]bool{}
	add := func(name string) {
		if name != "" && !seen[name] {
			seen[name] = true
			keys = append(keys, string(delta.NewKey(namespace, name)))
		}
	}
	controlled := false
	for _, o := range r.Owners {
		controlled = controlled || o.Controller
		if o.Kind == "Job" { // one that is past is not the controller
			add(o.Name)
		}
	}
	if controlled {
		return keys, r.Overflow
	}
	for _, name := range r.Labels[batchv1.JobNameLabel] {
		add(name)
	}
	if !r.Tombstone() {
		keys = append(keys, OrphansKey(namespace))
	}
	return keys, r.Overflow
}

// ManualSelector is the field selector of the Jobs whose selector their user chose.
// Others select on their UID, which a pod that they did not make does not carry.
const ManualSelector = "spec.manualSelector=true"

// orphans begins a namespace's orphans key. No namespace can be called so.
const orphans = "@orphans"

// OrphansKey is the queue's key for the pods of a namespace that nobody controls.
// A record does not tell all labels of a pod, nor which Jobs select it; so anyone who
// holds this key wakes every Job of the namespace that [ManualSelector] finds.
// However many such pods change, the key runs once for each batch period, and like
// every key it is not lost before that has been done.
func OrphansKey(namespace string) string {
	return string(delta.NewKey(orphans, namespace))
}

// OrphansOf returns the namespace of an [OrphansKey]; ok is false for other keys.
func OrphansOf(key string) (namespace string, ok bool) {
	return strings.CutPrefix(key, orphans+"/")
}
