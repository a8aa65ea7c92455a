package job

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/replica"
)

// maxState is what the queue keeps with a key.
const maxState = 4096

// memory is what is kept with a Job's key between syncs, no matter who runs them. It
// belongs to one UID.
type memory struct {
	UID types.UID `json:"u"`
	replica.Ledger
	// Failed and FailedAt are the pod-failure record.
	Failed   int32 `json:"k,omitempty"`
	FailedAt int64 `json:"l,omitempty"` // unix nanoseconds
	// Accounted are the pods of the status that the record has taken into account.
	Accounted *tally `json:"a,omitempty"`
	// Unsure: the outcome of a write is not known; read live next time.
	Unsure bool `json:"x,omitempty"`
	// Floor is the resource version of the last live list of pods, FloorEpoch the
	// epoch of the index then; the index is not used before it has reached it.
	Floor      delta.RV `json:"v,omitempty"`
	FloorEpoch uint64   `json:"ve,omitempty"`
	// Told is the feature the user was warned about.
	Told string `json:"e,omitempty"`
}

func (m *memory) failures() replica.Failures {
	if m.Failed == 0 {
		return replica.Failures{}
	}
	return replica.Failures{Count: m.Failed, Last: time.Unix(0, m.FailedAt)}
}

func (m *memory) setFailures(f replica.Failures) {
	m.Failed, m.FailedAt = f.Count, 0
	if f.Count > 0 {
		m.FailedAt = f.Last.UnixNano()
	}
}

// decodeMemory reads saved state; ok is whether it belongs to a Job. It never fails: state that
// cannot be read is as good as lost, and a sync without state reads live.
func decodeMemory(raw []byte) (m memory, ok bool) {
	if len(raw) == 0 || json.Unmarshal(raw, &m) != nil || m.UID == "" && !m.Unsure || m.Next < 0 || m.Next > replica.MaxOrdinal {
		return memory{}, false
	}
	return m, m.UID != ""
}

func (m *memory) encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err == nil && len(b) > maxState {
		err = fmt.Errorf("job: state of %d bytes, at most %d", len(b), maxState)
	}
	return b, err
}
