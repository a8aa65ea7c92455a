package nodelifecycle

import (
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/core/taint"
)

// scheduling are the taints that conditions stand for, by condition and status.
var scheduling = []struct{ condition, status, key string }{
	{Ready, False, taint.NotReady},
	{Ready, Unknown, taint.Unreachable},
	{MemoryPressure, True, taint.MemoryPressure},
	{DiskPressure, True, taint.DiskPressure},
	{PIDPressure, True, taint.PIDPressure},
	{NetworkUnavailable, True, taint.NetworkUnavailable},
}

// Plan is what becomes of a node's taints.
type Plan struct {
	// Taints are those it is to carry; Changed says that they are others than now.
	Taints  []taint.Taint
	Changed bool
	// Wait says that a NoExecute taint is due, which its zone's rate bounds.
	Wait bool
}

// Taints says which taints a node is to carry now. Those that do not belong to
// the rules are left as they are.
//
// NoSchedule taints follow the conditions and the spec at once. The two NoExecute
// taints go when the node is ready, or when all is stopped because every zone is
// down: it waits again then. The wrong one is swapped for the right one at once,
// and the first one has to wait for its zone.
func Taints(n *Node, stopped bool, now time.Time) Plan {
	var p Plan
	wanted := map[string]bool{}
	for _, s := range scheduling {
		if n.Condition(s.condition).Status == s.status {
			wanted[s.key] = true
		}
	}
	if n.Spec.Unschedulable {
		wanted[taint.Unschedulable] = true
	}
	has := map[string]bool{}
	for _, x := range n.Spec.Taints {
		if x.Effect == taint.NoSchedule && governed(x.Key) {
			if !wanted[x.Key] || has[x.Key] {
				p.Changed = true
				continue
			}
			has[x.Key] = true
		}
		p.Taints = append(p.Taints, x)
	}
	for _, key := range append(keys(), taint.Unschedulable) {
		if wanted[key] && !has[key] {
			p.Taints = append(p.Taints, taint.Taint{Key: key, Effect: taint.NoSchedule, TimeAdded: stamp(now)})
			p.Changed = true
		}
	}
	key := Executing(n)
	carries := taint.Has(n.Spec.Taints, taint.NotReady, taint.NoExecute) || taint.Has(n.Spec.Taints, taint.Unreachable, taint.NoExecute)
	switch {
	case key == "" && n.Ready() == "": // nothing is known of it
	case key == "" || stopped:
		p.drop(taint.NotReady)
		p.drop(taint.Unreachable)
		p.Wait = key != ""
	case carries:
		p.Place(key, now)
	default:
		p.Wait = true
	}
	return p
}

// Executing is the NoExecute taint that a node's state calls for; empty for none.
func Executing(n *Node) string {
	switch n.Ready() {
	case False:
		return taint.NotReady
	case Unknown:
		return taint.Unreachable
	default:
		return ""
	}
}

// Place puts the NoExecute taint of a key in the place of the other one.
func (p *Plan) Place(key string, now time.Time) {
	for _, other := range []string{taint.NotReady, taint.Unreachable} {
		if other != key {
			p.drop(other)
		}
	}
	if !taint.Has(p.Taints, key, taint.NoExecute) {
		p.Taints = append(p.Taints, taint.Taint{Key: key, Effect: taint.NoExecute, TimeAdded: stamp(now)})
		p.Changed = true
	}
}

func (p *Plan) drop(key string) {
	n := len(p.Taints)
	p.Taints = slices.DeleteFunc(p.Taints, func(x taint.Taint) bool { return x.Key == key && x.Effect == taint.NoExecute })
	p.Changed = p.Changed || len(p.Taints) != n
}

func keys() []string {
	out := make([]string, 0, len(scheduling)+1)
	for _, s := range scheduling {
		out = append(out, s.key)
	}
	return out
}

func governed(key string) bool { return key == taint.Unschedulable || slices.Contains(keys(), key) }

func stamp(now time.Time) *time.Time { return new(now.UTC().Truncate(time.Second)) }

// The labels that name a node's system, and the old ones that repeat them.
var repeated = []struct{ label, old string }{
	{"kubernetes.io/os", "beta.kubernetes.io/os"},
	{"kubernetes.io/arch", "beta.kubernetes.io/arch"},
}

// Labels are the labels to set so that the old names of operating system and
// architecture say what the present ones do; nil for none.
func Labels(n *Node) map[string]string {
	var out map[string]string
	for _, r := range repeated {
		if value, ok := n.Metadata.Labels[r.label]; ok && n.Metadata.Labels[r.old] != value {
			if out == nil {
				out = map[string]string{}
			}
			out[r.old] = value
		}
	}
	return out
}
