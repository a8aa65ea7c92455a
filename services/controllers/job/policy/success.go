package policy

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/deltaplane/deltaplane/core/replica"
)

// OfSuccess reports whether a policy is met by the indexes that have succeeded, of those below
// completions, and which rule meets it; p may be nil. A rule without an index below completions is
// not met.
func OfSuccess(p *batchv1.SuccessPolicy, completions int, succeeded replica.Indexes) (message string, met bool) {
	if p == nil || succeeded.Len() == 0 {
		return "", false
	}
	for i, r := range p.Rules {
		switch {
		case r.SucceededIndexes != nil:
			wanted := replica.ParseIndexes(*r.SucceededIndexes, completions)
			least := wanted.Len()
			if r.SucceededCount != nil {
				least = min(least, int(*r.SucceededCount))
			}
			met = wanted.Len() > 0 && wanted.Common(succeeded) >= least
		case r.SucceededCount != nil:
			met = succeeded.Len() >= int(*r.SucceededCount)
		}
		if met {
			return fmt.Sprintf("Matched rules at index %d", i), true
		}
	}
	return "", false
}
