package testing

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// seedVariable names the only seed of [Run].
const seedVariable = "DELTAPLANE_SEED"

// Run calls test with so many adverse environments, each of a seed of its own, from
// Config.Seed or 1. The seeds are parallel subtests, "seed=7". One that fails prints the
// command that runs it again: the variable DELTAPLANE_SEED makes Run run that seed alone.
func Run(t *testing.T, cfg Config, runs int, test func(t *testing.T, env *Env)) {
	t.Helper()
	first, runs, err := seeds(cfg.Seed, runs, os.Getenv(seedVariable)) //nolint:forbidigo // of the test that is run, which has no flags of its own
	if err != nil {
		t.Fatalf("testing: %v", err)
	}
	for i := range runs {
		c := cfg
		c.Seed = first + uint64(i)
		t.Run("seed="+strconv.FormatUint(c.Seed, 10), func(t *testing.T) {
			t.Parallel()
			test(t, start(t, c, fmt.Sprintf("%s=%d ", seedVariable, c.Seed)))
		})
	}
}

// seeds are the first seed and how many there are, unless a variable names the only one.
func seeds(first uint64, runs int, only string) (uint64, int, error) {
	if only == "" {
		return cmp.Or(first, 1), runs, nil
	}
	seed, err := strconv.ParseUint(only, 10, 64)
	if err != nil || seed == 0 {
		return 0, 0, fmt.Errorf("%s=%q: want a seed, a number above 0", seedVariable, only)
	}
	return seed, 1, nil
}

// again is the command that runs a test again, in its folder.
func again(variables, test string) string {
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return fmt.Sprintf("%sgo test -count=1 -run '%s' .", variables, strings.Join(parts, "/"))
}
