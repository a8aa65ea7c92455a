package prober

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/deltaplane/deltaplane/core/probe"
)

const (
	// warnEvery is the time between two Events about a probe that goes on failing; warnBurst is how
	// many there may be at once of one that fails and recovers all the time.
	warnEvery, warnBurst = 5 * time.Minute, 10
	// maxMessage is what an Event holds of an answer, in bytes.
	maxMessage = 1 << 10
)

// warnings decide which answers of a probe are worth an Event: the first of a row, the one that
// changes the result, and one every few minutes after that.
type warnings struct {
	id    string // of the container that answered last
	kind  string // of its answer
	at    time.Time
	limit *rate.Limiter
}

// due takes in an answer of the container id; an empty kind is one without anything to say.
func (w *warnings) due(id, kind string, changed bool, now time.Time) bool {
	first := id != w.id || kind != w.kind
	w.id, w.kind = id, kind
	if kind == "" || !first && !changed && now.Sub(w.at) < warnEvery || !w.limit.AllowN(now, 1) {
		return false
	}
	w.at = now
	return true
}

// warn writes an Event of an answer that is not well, unless others have said so before.
func (m *Manager) warn(w *worker, id string, a Answer, err error, changed bool) {
	reason, kind, message := reasonUnhealthy, "", a.Message
	switch {
	case err != nil:
		kind, message = "errored and resulted in unknown state", err.Error()
	case a.Result == probe.Failure:
		kind = "failed"
	case a.Warning:
		reason, kind = reasonWarning, "warning"
	}
	if w.warned.due(id, kind, changed, time.Now()) {
		m.deps.Warn(w.pod, reason, cut(fmt.Sprintf("Container %s: %s probe %s: %s", w.container.Name, w.kind, kind, message)))
	}
}

// cut leaves the first bytes of a message, whole characters of it.
func cut(message string) string {
	const more = "..."
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage-len(more)], "") + more
}
