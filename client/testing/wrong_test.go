package testing_test

import (
	"fmt"
	"testing"
	"time"

	dptest "github.com/deltaplane/deltaplane/client/testing"
)

// fails runs a wrong controller with up to 30 seeds and returns the first that finds it out.
func fails(t *testing.T, cfg dptest.Config, wrong notes) (seed uint64) {
	t.Helper()
	cfg.Resources = mirrored
	for cfg.Seed = 1; cfg.Seed <= 30 && seed == 0; cfg.Seed++ {
		t.Run(fmt.Sprint("seed=", cfg.Seed), func(t *testing.T) {
			if err := colours(t, dptest.Start(t, cfg), wrong); err != nil {
				t.Log(err)
				seed = cfg.Seed
			}
		})
	}
	if seed == 0 {
		t.Fatal("30 seeds did not find out what is wrong")
	}
	return seed
}

func TestANameThatIsNoFunctionOfTheKeyIsFound(t *testing.T) {
	t.Parallel()
	fails(t, dptest.Config{}, notes{generates: true})
}

func TestASwallowedConflictIsFound(t *testing.T) {
	t.Parallel()
	fails(t, dptest.Config{}, notes{swallows: true})
}

// Nothing but stale reads is needed for it, and passing writes to Wrote is what helps.
func TestAWriteThatIsNotPassedToWroteIsFound(t *testing.T) {
	t.Parallel()
	// The next change is made long before the lagging replica has this one, on a slow machine too.
	stale := dptest.Config{Lag: 2 * time.Second, Rates: dptest.Rates{
		StaleReads: 0.6, FailedReads: -1, BrokenStreams: -1, DuplicateKeys: -1, LateKeys: -1, LostLeases: -1, KilledWorkers: -1,
		Conflicts: -1, LostAnswers: -1, RefusedCalls: -1,
	}}
	stale.Seed = fails(t, stale, notes{forgets: true})
	stale.Resources = mirrored
	t.Run("right", func(t *testing.T) {
		if err := colours(t, dptest.Start(t, stale), notes{blind: true}); err != nil {
			t.Errorf("with Wrote: %v", err)
		}
	})
}
