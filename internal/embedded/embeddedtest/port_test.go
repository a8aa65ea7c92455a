package embeddedtest_test

import (
	"testing"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// With this many of 20,000 ports, independent calls would return about 25 of them twice.
func TestPortsThatWereGivenAreNotGivenAgainBeforeTheTestEnds(t *testing.T) {
	t.Parallel()
	given := map[string]bool{}
	for range 1000 {
		address := embeddedtest.Ports(t, 1)[0]
		if given[address] {
			t.Fatalf("%s was given twice", address)
		}
		given[address] = true
	}
}
