package critest

import (
	"testing"
)

type check struct {
	name string
	run  func(*testing.T, *suite)
}

// Run tests a runtime. The tests run one after the other, since some restart it.
func Run(t *testing.T, target Target) {
	t.Helper()
	s := newSuite(target)
	for _, checks := range [][]check{nodeChecks, sandboxChecks, containerChecks, stopChecks, listChecks, inputChecks, imageChecks, logChecks, eventChecks, restartChecks} {
		for _, c := range checks {
			t.Run(c.name, func(t *testing.T) {
				if why, differs := target.Differs[c.name]; differs {
					t.Skip("differs: " + why)
				}
				c.run(t, s)
			})
		}
	}
}
