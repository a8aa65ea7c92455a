package testing_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/client"
	dptest "github.com/deltaplane/deltaplane/client/testing"
)

// script makes many calls one after the other.
func script(t *testing.T, seed uint64) (done string) {
	t.Helper()
	t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
		env := dptest.Start(t, dptest.Config{Seed: seed, Resources: mirrored})
		index, a, q := client.NewIndex(env.Index()), apiOf(t, env), client.NewQueue(env.Queue(), "dev/test", "")
		if _, err := q.Configure(t.Context(), client.QueueConfig{}); err != nil {
			t.Fatal(err)
		}
		for i := range 60 {
			key := fmt.Sprint("c", i%7)
			_, _, err := index.Get(t.Context(), "configmaps", "default/"+key, client.ReadOptions{})
			if e, ok := errors.AsType[*client.Error](err); err != nil && !ok {
				t.Fatal(e)
			}
			_, _ = a.write(t.Context(), configMap(key, "red"))
			_, _ = q.Add(t.Context(), client.Keys(key)...)
		}
		done = dptest.Summary(env)
	})
	return done
}

func TestASeedDecidesTheSameTwice(t *testing.T) {
	t.Parallel()
	first, again, other := script(t, 7), script(t, 7), script(t, 8)
	if first != again || !strings.Contains(first, "stale reads") {
		t.Errorf("of one seed:\n%s\nand then\n%s", first, again)
	}
	if first == other {
		t.Errorf("two seeds decide the same:\n%s", first)
	}
}

func TestAVariableNamesTheOnlySeed(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		first uint64
		only  string
		want  string
	}{
		{0, "", "1 30 <nil>"},
		{100, "", "100 30 <nil>"},
		{100, "17", "17 1 <nil>"},
		{0, "0", `0 0 DELTAPLANE_SEED="0": want a seed, a number above 0`},
		{0, "many", `0 0 DELTAPLANE_SEED="many": want a seed, a number above 0`},
	} {
		first, runs, err := dptest.Seeds(row.first, 30, row.only)
		if got := fmt.Sprint(first, runs, err); got != row.want {
			t.Errorf("seed %d with the variable %q: %s, want %s", row.first, row.only, got, row.want)
		}
	}
}

func TestAFailedTestSaysHowToRunItAgain(t *testing.T) {
	t.Parallel()
	want := `DELTAPLANE_SEED=7 go test -count=1 -run '^TestNotes$/^of\+pods$/^seed=7$' .`
	if got := dptest.Again("DELTAPLANE_SEED=7 ", "TestNotes/of+pods/seed=7"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestAFaultOfTheConfigurationIsNamed(t *testing.T) {
	t.Parallel()
	for fault, cfg := range map[string]dptest.Config{
		"rate of stale reads 2 is above 1": {Rates: dptest.Rates{StaleReads: 2}},
		"lag -1s is negative":              {Lag: -1e9},
		`resource "*": name each resource`: {Resources: []string{"pods", "*"}},
		`resource "pods/"`:                 {Resources: []string{"pods/"}},
	} {
		if err := dptest.Validate(cfg); err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("%+v: %v, want %q", cfg, err, fault)
		}
	}
	if err := dptest.Validate(dptest.Config{}); err != nil {
		t.Errorf("the zero value: %v", err)
	}
}
