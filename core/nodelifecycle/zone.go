package nodelifecycle

// Labels of nodes.
const (
	RegionLabel  = "topology.kubernetes.io/region"
	ZoneLabel    = "topology.kubernetes.io/zone"
	ExcludeLabel = "node.kubernetes.io/exclude-disruption"
)

// Zone is where a node is: nodes without labels are in one zone. The retired
// labels count where the present ones are missing.
type Zone struct{ Region, Name string }

// String is the zone as a label of metrics, as upstream writes it.
func (z Zone) String() string {
	if z == (Zone{}) {
		return ""
	}
	return z.Region + ":" + z.Name
}

// ZoneOf is a node's zone.
func ZoneOf(labels map[string]string) Zone {
	get := func(label, old string) string {
		if v, ok := labels[label]; ok {
			return v
		}
		return labels[old]
	}
	return Zone{
		Region: get(RegionLabel, "failure-domain.beta.kubernetes.io/region"),
		Name:   get(ZoneLabel, "failure-domain.beta.kubernetes.io/zone"),
	}
}

// State is how disrupted a zone is.
type State string

// The states.
const (
	Normal  State = "Normal"
	Partial State = "PartialDisruption"
	Full    State = "FullDisruption"
)

// Count is the nodes of a zone that are counted.
type Count struct{ Ready, NotReady int }

// Size is how many they are.
func (c Count) Size() int { return c.Ready + c.NotReady }

// Counts count nodes by zone; those excluded from disruption are left out, and a
// zone with no other ones is none.
func Counts(nodes []*Node) map[Zone]Count {
	counts := map[Zone]Count{}
	for _, n := range nodes {
		if _, excluded := n.Metadata.Labels[ExcludeLabel]; excluded {
			continue
		}
		zone := ZoneOf(n.Metadata.Labels)
		c := counts[zone]
		if n.Ready() == True {
			c.Ready++
		} else {
			c.NotReady++
		}
		counts[zone] = c
	}
	return counts
}

// State is the state of a zone: Full with no ready node, Partial with more than
// two nodes not ready that are at least the threshold's share, else Normal.
func (r Rules) State(c Count) State {
	switch {
	case c.Ready == 0 && c.NotReady > 0:
		return Full
	case c.NotReady > 2 && float64(c.NotReady)/float64(c.Size()) >= r.WithDefaults().Threshold:
		return Partial
	default:
		return Normal
	}
}

// View is what all zones together say.
type View struct {
	States map[Zone]State
	Counts map[Zone]Count
	// Stopped says that every zone is fully disrupted: nothing is tainted, and what
	// was is no more.
	Stopped bool
}

// View judges the zones.
func (r Rules) View(nodes []*Node) View {
	v := View{States: map[Zone]State{}, Counts: Counts(nodes)}
	v.Stopped = len(v.Counts) > 0
	for zone, c := range v.Counts {
		v.States[zone] = r.State(c)
		v.Stopped = v.Stopped && v.States[zone] == Full
	}
	return v
}

// RateOf is how many nodes a second may be tainted in a zone; zero for none. A zone
// that is not known has the ordinary rate.
func (r Rules) RateOf(v View, zone Zone) float64 {
	r = r.WithDefaults()
	switch {
	case v.Stopped:
		return 0
	case v.States[zone] != Partial:
		return *r.Rate
	case v.Counts[zone].Size() > r.LargeZone:
		return *r.SlowRate
	default:
		return 0
	}
}
