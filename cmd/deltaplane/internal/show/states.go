package show

import (
	"fmt"
	"strings"
	"time"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// ReflectionState is where a loop stands, why it fails, and how far a running list is.
func ReflectionState(r *reflectorv1.Reflection) string {
	state := strings.ToLower(strings.TrimPrefix(r.GetState().String(), "REFLECTION_STATE_"))
	if r.GetReason() != "" {
		state += " " + Printable(r.GetReason())
	}
	l := r.GetList()
	if l == nil {
		return state
	}
	text := fmt.Sprint(l.GetObjects())
	if left := l.GetRemaining(); left != nil {
		text += fmt.Sprintf(" of about %d", l.GetObjects()+left.GetValue())
	}
	if l.GetRate() > 0 {
		text += fmt.Sprintf(", %.0f/s", l.GetRate())
		if left := l.GetRemaining(); left.GetValue() > 0 {
			text += ", " + ShortDuration(time.Duration(float64(left.GetValue())/l.GetRate()*float64(time.Second))) + " left"
		}
	}
	if l.GetStreaming() {
		text += ", streaming"
	}
	return state + " (" + text + ")"
}

// CollectionState is how a replica serves a collection.
func CollectionState(c *indexv1.CollectionStatus) string {
	switch {
	case !c.GetSynced():
		return "not synced"
	case c.GetLagging():
		return "LAGGING"
	case c.GetStale():
		return "stale"
	case c.GetWarmStart():
		return "serving (warm start)"
	}
	return "serving"
}
