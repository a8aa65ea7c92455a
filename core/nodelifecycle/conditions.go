package nodelifecycle

import "time"

// The reasons and messages of conditions that nobody reports.
const (
	NeverUpdated        = "NodeStatusNeverUpdated"
	StatusUnknown       = "NodeStatusUnknown"
	neverUpdatedMessage = "Kubelet never posted node status."
	unknownMessage      = "Kubelet stopped posting node status."
)

// Expire are the conditions a silent node gets: Ready and the three pressures
// become Unknown. One that never was has the node's creation as its heartbeat, one
// that was keeps its own. None when all are Unknown already. NetworkUnavailable is
// not touched.
func Expire(n *Node, now time.Time) []Condition {
	var out []Condition
	for _, kind := range []string{Ready, MemoryPressure, DiskPressure, PIDPressure} {
		c := n.Condition(kind)
		switch c.Status {
		case Unknown:
			continue
		case "":
			c = Condition{
				Type: kind, LastHeartbeatTime: n.Metadata.CreationTimestamp.UTC().Format(time.RFC3339),
				Reason: NeverUpdated, Message: neverUpdatedMessage,
			}
		default:
			c.Reason, c.Message = StatusUnknown, unknownMessage
		}
		c.Status, c.LastTransitionTime = Unknown, now.UTC().Format(time.RFC3339)
		out = append(out, c)
	}
	return out
}
