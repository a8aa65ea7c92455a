package taint

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The effects of a taint.
const (
	NoSchedule       = "NoSchedule"
	PreferNoSchedule = "PreferNoSchedule"
	NoExecute        = "NoExecute"
)

// The operators of a toleration. An empty one is Equal.
const (
	Equal  = "Equal"
	Exists = "Exists"
	// Lt and Gt compare whole numbers. They are an alpha feature of Kubernetes and
	// match nothing unless Rules.Numeric is set.
	Lt = "Lt"
	Gt = "Gt"
)

// The taints that the node lifecycle controller places.
const (
	NotReady           = "node.kubernetes.io/not-ready"
	Unreachable        = "node.kubernetes.io/unreachable"
	MemoryPressure     = "node.kubernetes.io/memory-pressure"
	DiskPressure       = "node.kubernetes.io/disk-pressure"
	PIDPressure        = "node.kubernetes.io/pid-pressure"
	NetworkUnavailable = "node.kubernetes.io/network-unavailable"
	Unschedulable      = "node.kubernetes.io/unschedulable"
)

// OutOfService is the taint by which an operator says that a node is shut down.
const OutOfService = "node.kubernetes.io/out-of-service"

// Taint is a taint of a node as the API writes it.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
	// TimeAdded is when it was placed, to the second; nil when nobody said.
	TimeAdded *time.Time `json:"timeAdded,omitempty"`
}

// Toleration is a toleration of a pod as the API writes it.
type Toleration struct {
	Key      string `json:"key,omitempty"`
	Operator string `json:"operator,omitempty"`
	Value    string `json:"value,omitempty"`
	Effect   string `json:"effect,omitempty"`
	// Seconds is how long the taint is tolerated: nil for ever, zero or less not at all.
	Seconds *int64 `json:"tolerationSeconds,omitempty"`
}

// Rules are what a cluster may have switched on. The zero value is Kubernetes' default.
type Rules struct {
	// Numeric makes Lt and Gt match.
	Numeric bool
}

// Tolerates reports whether a toleration matches a taint: effect empty or equal,
// key empty or equal, and Equal (or no operator) compares the value, Exists takes
// any. An operator that is not known matches nothing.
func (r Rules) Tolerates(t Toleration, x Taint) bool {
	if t.Effect != "" && t.Effect != x.Effect || t.Key != "" && t.Key != x.Key {
		return false
	}
	switch t.Operator {
	case "", Equal:
		return t.Value == x.Value
	case Exists:
		return true
	case Lt, Gt:
		return r.Numeric && compares(t, x)
	default:
		return false
	}
}

// compares applies Lt and Gt: the taint's value against the toleration's.
func compares(t Toleration, x Taint) bool {
	want, err := strconv.ParseInt(t.Value, 10, 64)
	if err != nil {
		return false
	}
	have, err := strconv.ParseInt(x.Value, 10, 64)
	if err != nil {
		return false
	}
	if t.Operator == Lt {
		return have < want
	}
	return have > want
}

// First is the first toleration that matches a taint; later ones are not looked
// at, even if they are longer or shorter.
func (r Rules) First(list []Toleration, x Taint) (Toleration, bool) {
	i := slices.IndexFunc(list, func(t Toleration) bool { return r.Tolerates(t, x) })
	if i < 0 {
		return Toleration{}, false
	}
	return list[i], true
}

// Evicting are the taints that evict: those with the effect NoExecute, in order.
func Evicting(all []Taint) []Taint {
	var out []Taint
	for _, x := range all {
		if x.Effect == NoExecute {
			out = append(out, x)
		}
	}
	return out
}

// ID tells a taint from every other: by key, value, effect and the time it was
// placed. One that was taken away and placed again is another. It has 16 letters.
func (x Taint) ID() string {
	h := fnv.New64a()
	for _, part := range []string{x.Key, x.Value, x.Effect, strconv.FormatInt(added(x).Unix(), 10)} {
		h.Write(strconv.AppendQuote(nil, part))
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// Fingerprint is a text that differs when the set of NoExecute taints does. It does
// not depend on their order, has at most 16 letters, and is empty for none.
func Fingerprint(all []Taint) string {
	var ids []string
	for _, x := range Evicting(all) {
		ids = append(ids, x.ID())
	}
	if len(ids) == 0 {
		return ""
	}
	slices.Sort(ids)
	h := fnv.New64a()
	h.Write([]byte(strings.Join(slices.Compact(ids), ",")))
	return fmt.Sprintf("%016x", h.Sum64())
}

// FingerprintOf is a text of 16 letters that differs when tolerations do, in their
// order too: the first that matches counts.
func FingerprintOf(list []Toleration) string {
	h := fnv.New64a()
	for _, t := range list {
		seconds := ""
		if t.Seconds != nil {
			seconds = strconv.FormatInt(*t.Seconds, 10)
		}
		for _, part := range []string{t.Key, t.Operator, t.Value, t.Effect, seconds} {
			h.Write(strconv.AppendQuote(nil, part))
		}
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

func added(x Taint) time.Time {
	if x.TimeAdded == nil {
		return time.Time{}
	}
	return *x.TimeAdded
}

// Has reports whether there is a taint with this key and effect.
func Has(all []Taint, key, effect string) bool {
	return slices.ContainsFunc(all, func(x Taint) bool { return x.Key == key && x.Effect == effect })
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
