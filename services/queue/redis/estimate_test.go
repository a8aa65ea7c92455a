package redis

import (
	"testing"
	"time"
)

const rtt = 2 * time.Millisecond

// met is an estimate of a clock that is an hour ahead of the process'.
func met() (*estimate, func(at, drift time.Duration)) {
	e := &estimate{}
	learn := func(at, drift time.Duration) { e.learn(at-rtt, at, (at + time.Hour + drift).Microseconds(), 0) }
	learn(rtt, 0)
	return e, learn
}

func TestManySmallStepsForwardAreFoundOutAsOneLargeOne(t *testing.T) {
	t.Parallel()
	e, learn := met()
	const by = 200 * time.Millisecond // each may be a transaction that was long on its way
	for i := time.Duration(1); i <= 100; i++ {
		at := i * time.Second
		if _, latest, ok := e.bounds(at); !ok || (at+time.Hour+i*by).Microseconds() > latest {
			return
		}
		learn(at, i*by)
	}
	t.Errorf("the clock ran %v ahead unnoticed", 100*by)
}

func TestATransactionThatTookLongLeavesTheClockAsWellKnownAsItWas(t *testing.T) {
	t.Parallel()
	e, _ := met()
	at := 20 * time.Second
	e.learn(at-10*time.Second, at, (at + time.Hour - 5*time.Second).Microseconds(), 0)
	at += time.Second
	if earliest, _, _ := e.bounds(at); (at+time.Hour).Microseconds()-earliest > 500e3 {
		t.Errorf("a transaction may come %d us early", (at+time.Hour).Microseconds()-earliest)
	}
}

func TestATransactionThatWasLongOnItsWayIsLetThroughTheNextTime(t *testing.T) {
	t.Parallel()
	e, _ := met()
	sent, came := 10*time.Second, 14*time.Second
	if by := e.refused(sent, came, (came + time.Hour).Microseconds(), 0, time.Minute); by != 0 {
		t.Errorf("taken for a step of %d us", by)
	}
	if _, latest, _ := e.bounds(came); latest < (came + 4*time.Second + time.Hour).Microseconds() {
		t.Error("a transaction that takes as long is refused again")
	}
}
