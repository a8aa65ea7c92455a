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
	first := cmp.Or(cfg.Seed, 1)
	if text := os.Getenv(seedVariable); text != "" { //nolint:forbidigo // it belongs to the test that is run, which has no flags of its own
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil || seed == 0 {
			t.Fatalf("testing: %s=%q: want a seed, a number above 0", seedVariable, text)
		}
		first, runs = seed, 1
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

// again is the command that runs a test again, in its folder.
func again(variables, test string) string {
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return fmt.Sprintf("%sgo test -count=1 -run '%s' .", variables, strings.Join(parts, "/"))
}
