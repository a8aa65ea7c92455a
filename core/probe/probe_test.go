package probe_test

import (
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/probe"
)

func at(seconds int) time.Time { return time.Unix(1_000_000+int64(seconds), 0) }

func running(id string, since int) probe.Container {
	return probe.Container{ID: id, Running: true, Since: at(since), Started: true}
}

// due is in how many seconds after the start of time a probe is due; -1 is not.
func due(p *probe.Probe) int {
	when, ok := p.Due()
	if !ok {
		return -1
	}
	return int(when.Sub(at(0)) / time.Second)
}

func TestAContainerIsProbedFromItsInitialDelayOnOnceAPeriod(t *testing.T) {
	t.Parallel()
	p := probe.New(probe.Readiness, probe.Spec{InitialDelay: 5 * time.Second, Period: 3 * time.Second})
	if got := due(p); got != -1 {
		t.Errorf("without a container it is due at %d", got)
	}
	p.Observe(probe.Container{ID: "a"}, at(0), 0)
	if got := due(p); got != -1 {
		t.Errorf("before the container runs it is due at %d", got)
	}
	p.Observe(running("a", 1), at(2), 0)
	if got := due(p); got != 6 {
		t.Errorf("the first probe is due at %d, want 6: the start and the initial delay", got)
	}
	p.Settle("a", probe.Success, at(7))
	p.Observe(running("a", 1), at(8), 0)
	if got := due(p); got != 10 {
		t.Errorf("the second probe is due at %d, want 10: a period after the first began", got)
	}
	p.Settle("a", probe.Unknown, at(10))
	if got := due(p); got != 13 {
		t.Errorf("after a probe that could not be made it is due at %d, want 13", got)
	}
	p.Observe(probe.Container{ID: "a"}, at(12), 0)
	if got := due(p); got != -1 {
		t.Errorf("after the container ended it is due at %d", got)
	}
}

func TestContainersThatRanBeforeTheAgentAreFirstProbedWithinAPeriodAtRandom(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		since  int
		random float64
		want   int
	}{{0, 0.5, 105}, {0, 0, 100}, {85, 0.5, 95}, {95, 0.5, 105}} {
		p := probe.New(probe.Liveness, probe.Spec{InitialDelay: 10 * time.Second})
		p.Observe(running("a", row.since), at(100), row.random)
		if got := due(p); got != row.want {
			t.Errorf("running since %d, random %v: due at %d, want %d", row.since, row.random, got, row.want)
		}
	}
}

// TestARowOfAnswersComesToAResultAtItsThreshold writes answers as + (success), - (failure) and ?
// (could not be made), and results in the same way.
func TestARowOfAnswersComesToAResultAtItsThreshold(t *testing.T) {
	t.Parallel()
	letters := "?+-"
	for _, row := range []struct {
		kind                probe.Kind
		successes, failures int
		answers, results    string
	}{
		{probe.Readiness, 1, 3, "--+--+---+", "??++++++-+"},
		{probe.Readiness, 3, 2, "+-++-+++-+--", "???????++++-"},
		{probe.Readiness, 2, 2, "+?+-?-", "??+++-"},
		{probe.Liveness, 1, 2, "+-+-?-", "+++++-"},
		{probe.Startup, 1, 3, "--+", "??+"},
		{probe.Startup, 1, 3, "---", "??-"},
		{probe.Readiness, 0, 0, "+---", "+++-"},
	} {
		p := probe.New(row.kind, probe.Spec{Successes: row.successes, Failures: row.failures})
		c := running("a", 0)
		c.Started = row.kind != probe.Startup
		p.Observe(c, at(0), 0)
		var got []byte
		for i, answer := range row.answers {
			if _, ok := p.Due(); !ok {
				t.Errorf("%s %s: not due before answer %d", row.kind, row.answers, i)
			}
			before := p.Result("a")
			changed := p.Settle("a", probe.Result(strings.IndexRune(letters, answer)), at(10*i))
			after := p.Result("a")
			if changed != (before != after) {
				t.Errorf("%s %s: Settle() %d = %v, but the result went from %v to %v", row.kind, row.answers, i, changed, before, after)
			}
			got = append(got, letters[after])
		}
		if string(got) != row.results {
			t.Errorf("%s %s of %d and %d = %s, want %s", row.kind, row.answers, row.successes, row.failures, got, row.results)
		}
	}
}

func TestStartupHoldsTheOthersBackAndRestsAfterwards(t *testing.T) {
	t.Parallel()
	startup := probe.New(probe.Startup, probe.Spec{})
	others := []*probe.Probe{probe.New(probe.Readiness, probe.Spec{}), probe.New(probe.Liveness, probe.Spec{})}
	starting := running("a", 0)
	starting.Started = false
	for _, p := range append(others, startup) {
		p.Observe(starting, at(0), 0)
	}
	if got := due(startup); got != 0 {
		t.Errorf("the startup probe is due at %d, want 0", got)
	}
	for _, p := range others {
		if got := due(p); got != -1 {
			t.Errorf("before the start another probe is due at %d", got)
		}
	}
	startup.Settle("a", probe.Success, at(0))
	if got := due(startup); got != -1 {
		t.Errorf("after its success the startup probe is due at %d", got)
	}
	for _, p := range others {
		p.Observe(running("a", 0), at(1), 0)
		if got := due(p); got != 0 {
			t.Errorf("after the start another probe is due at %d, want 0: at once", got)
		}
	}
}

func TestAProbeThatCameToAFailureRestsUntilThereIsAnotherContainer(t *testing.T) {
	t.Parallel()
	for _, kind := range []probe.Kind{probe.Liveness, probe.Startup} {
		p := probe.New(kind, probe.Spec{Failures: 1})
		of := func(id string, since int) probe.Container {
			c := running(id, since)
			c.Started = kind != probe.Startup
			return c
		}
		p.Observe(of("a", 0), at(0), 0)
		p.Settle("a", probe.Failure, at(0))
		p.Observe(of("a", 0), at(20), 0)
		if got := due(p); got != -1 || p.Result("a") != probe.Failure {
			t.Errorf("%s: after the failure it is due at %d with %v", kind, got, p.Result("a"))
		}
		p.Observe(of("b", 30), at(31), 0)
		if got := due(p); got != 30 || p.Result("a") != probe.Unknown || p.Result("b") != probe.Unknown {
			t.Errorf("%s: of the next container it is due at %d, with %v of the old and %v of the new", kind, got, p.Result("a"), p.Result("b"))
		}
		if p.Settle("a", probe.Failure, at(32)) || p.Result("b") != probe.Unknown {
			t.Errorf("%s: a late answer about the old container counted", kind)
		}
	}
}

func TestSuccessesOfOneContainerDoNotCountForTheNext(t *testing.T) {
	t.Parallel()
	p := probe.New(probe.Readiness, probe.Spec{Successes: 3})
	p.Observe(running("a", 0), at(0), 0)
	for i := range 5 {
		p.Settle("a", probe.Success, at(10*i))
	}
	p.Observe(running("b", 60), at(60), 0)
	if p.Settle("b", probe.Success, at(60)); p.Result("b") != probe.Unknown {
		t.Errorf("one success after another container's is %v, want nothing yet", p.Result("b"))
	}
	if p.Result("") != probe.Unknown {
		t.Error("no container has a result")
	}
}
