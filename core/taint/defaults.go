package taint

import (
	"errors"
	"fmt"
)

// DefaultSeconds is how long a pod stays on a node that is not ready or cannot be
// reached, unless it or the cluster says otherwise.
const DefaultSeconds = 300

// Defaults are the seconds of the tolerations every pod is given. They are taken
// as they are: zero is a toleration of no time at all.
type Defaults struct {
	NotReady, Unreachable int64
}

// StandardDefaults are Kubernetes' own.
func StandardDefaults() Defaults {
	return Defaults{NotReady: DefaultSeconds, Unreachable: DefaultSeconds}
}

// Validate reports every fault of d together.
func (d Defaults) Validate() error {
	var faults []error
	for _, f := range []struct {
		name    string
		seconds int64
	}{{"not-ready", d.NotReady}, {"unreachable", d.Unreachable}} {
		if f.seconds < 0 {
			faults = append(faults, fmt.Errorf("taint: default toleration seconds of %s are negative: %d", f.name, f.seconds))
		}
	}
	return errors.Join(faults...)
}

// Missing are the tolerations to append to a pod's, not-ready first. A key is
// spoken for by a toleration with that key or none whose effect is NoExecute or
// empty, whatever its operator, value and seconds. Once they are appended nothing
// is missing any more.
func (d Defaults) Missing(have []Toleration) []Toleration {
	var out []Toleration
	for _, want := range []struct {
		key     string
		seconds int64
	}{{NotReady, d.NotReady}, {Unreachable, d.Unreachable}} {
		if !spokenFor(have, want.key) {
			out = append(out, Toleration{Key: want.key, Operator: Exists, Effect: NoExecute, Seconds: new(want.seconds)})
		}
	}
	return out
}

func spokenFor(have []Toleration, key string) bool {
	for _, t := range have {
		if (t.Key == key || t.Key == "") && (t.Effect == NoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}
