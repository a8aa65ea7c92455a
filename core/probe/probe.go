package probe

import (
	"cmp"
	"time"
)

// Spec is how often a container is probed and how many answers in a row count. What is zero
// is the API's default: no initial delay, a period of 10 s, 1 success and 3 failures.
type Spec struct {
	InitialDelay, Period time.Duration
	Successes, Failures  int
}

func (s Spec) withDefaults() Spec {
	s.Period = cmp.Or(s.Period, 10*time.Second)
	s.Successes, s.Failures = cmp.Or(s.Successes, 1), cmp.Or(s.Failures, 3)
	return s
}

// Container is a container as it was last reported. ID is empty while there is none, and Since is
// when it began to run. Started says that it needs no startup probe any more.
type Container struct {
	ID      string
	Running bool
	Since   time.Time
	Started bool
}

// Probe is one probe of one container of a pod, whichever instance of it runs.
type Probe struct {
	kind Kind
	spec Spec

	seen   Container
	due    time.Time
	rests  bool   // until there is another container
	last   Result // of the last probe
	run    int    // how many times in a row it came
	result Result
}

// New is a probe that has not seen a container yet.
func New(kind Kind, spec Spec) *Probe { return &Probe{kind: kind, spec: spec.withDefaults()} }

// Observe takes in the container as it is at now. One that has been running for longer than its
// first probe would have waited, as when an agent starts on a node with many, is first probed
// within a period: random, uniform in [0, 1), says when.
func (p *Probe) Observe(c Container, now time.Time, random float64) {
	begins := c.Running && (c.ID != p.seen.ID || !p.seen.Running)
	if c.ID != p.seen.ID {
		p.rests, p.last, p.run, p.result = false, Unknown, 0, Unknown
	}
	p.seen = c
	if !begins {
		return
	}
	p.due = c.Since.Add(p.spec.InitialDelay)
	if late := now.Sub(p.due); late > p.spec.Period {
		p.due = now.Add(time.Duration(random * float64(p.spec.Period)))
	}
}

// Due is when the container is to be probed; ok is false when that waits for another observation.
func (p *Probe) Due() (at time.Time, ok bool) {
	if !p.seen.Running || p.rests || p.seen.Started == (p.kind == Startup) {
		return time.Time{}, false
	}
	return p.due, true
}

// Settle takes in the answer of a probe that began at begin, for the container id, and reports
// whether [Probe.Result] changed. Unknown is a probe that could not be made: it counts for nothing.
// An answer about a container that is there no more is dropped.
func (p *Probe) Settle(id string, r Result, begin time.Time) (changed bool) {
	if id != p.seen.ID {
		return false
	}
	p.due = begin.Add(p.spec.Period)
	if r == Unknown {
		return false
	}
	if r != p.last {
		p.last, p.run = r, 0
	}
	p.run++
	if r == Failure && p.run < p.spec.Failures || r == Success && p.run < p.spec.Successes {
		return false
	}
	p.rests = p.kind == Startup || p.kind == Liveness && r == Failure
	changed = r != p.result
	p.result = r
	return changed
}

// Result is what the probes of the container id came to; Unknown for any but the present one.
func (p *Probe) Result(id string) Result {
	if id == "" || id != p.seen.ID {
		return Unknown
	}
	return p.result
}
