package history

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tale builds a history by hand; a step is a millisecond.
type tale struct {
	now    int64
	id     int64
	events []Event
}

func (h *tale) put(e Event) *tale {
	h.now += 1e6
	e.At = h.now
	h.events = append(h.events, e)
	return h
}

func (h *tale) wait(ms int64) *tale { h.now += ms * 1e6; return h }

// add is an add that takes one step and ends as said.
func (h *tale) add(key string, delay int64, end Kind) *tale {
	h.id++
	h.put(Event{Process: "p", Kind: Invoke, Op: Add, ID: h.id, Key: key, Delay: delay * 1e6})
	if end != "" {
		h.put(Event{Process: "p", Kind: end, Op: Add, ID: h.id, Key: key})
	}
	return h
}

// lease hands a key to a worker for some milliseconds.
func (h *tale) lease(worker, key string, token uint64, ms int64) *tale {
	return h.put(Event{Process: worker, Kind: Leased, Key: key, Token: token, Until: h.now + 1e6 + ms*1e6})
}

func (h *tale) settle(worker, key string, token uint64, status string) *tale {
	return h.settleAs(worker, Event{Key: key, Token: token, Ends: true}, status)
}

func (h *tale) settleAs(worker string, e Event, status string) *tale {
	h.id++
	e.Process, e.Kind, e.Op, e.ID = worker, Invoke, Settle, h.id
	h.put(e)
	if status != "" {
		h.put(Event{Process: worker, Kind: OK, Op: Settle, ID: h.id, Key: e.Key, Token: e.Token, Status: status})
	}
	return h
}

func (h *tale) fault(name, whom string, ms int64) *tale {
	h.id++
	h.put(Event{Process: "nemesis", Kind: Fault, ID: h.id, Name: name, Whom: whom})
	h.events = append(h.events, Event{Process: "nemesis", Kind: Healed, ID: h.id, At: h.now + ms*1e6})
	return h
}

func TestEachFaultOfAHistoryIsFoundAndNoOther(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		h    *tale
		want string // the rule that is broken, empty for none
	}{
		"a key is added, leased and done": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).settle("a", "k", 5, StatusSettled), "",
		},
		"a key added while held runs once more": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).add("k", 0, OK).settle("a", "k", 5, StatusRequeued).lease("b", "k", 6, 100).settle("b", "k", 6, StatusSettled), "",
		},
		"the second of two settlements of a lease is refused": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).settle("a", "k", 5, StatusSettled).settle("a", "k", 5, StatusNotLeased), "",
		},
		"two settlements of a lease are accepted": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).settle("a", "k", 5, StatusSettled).settle("a", "k", 5, StatusSettled), RuleOneSettle,
		},
		"a stale token is refused after the key went to another": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 10).wait(20).lease("b", "k", 6, 100).settle("a", "k", 5, StatusLost).settle("b", "k", 6, StatusSettled), "",
		},
		"a stale token settles": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 10).wait(20).lease("b", "k", 6, 100).settle("a", "k", 5, StatusSettled), RuleFencing,
		},
		"two workers hold a key": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).lease("b", "k", 6, 100), RuleExclusion,
		},
		"two workers hold a key because a lease was extended": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 10).put(Event{Process: "a", Kind: Held, Key: "k", Token: 5, Until: 200e6}).wait(20).lease("b", "k", 6, 100), RuleExclusion,
		},
		"the first dropped the key before the second got it": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).put(Event{Process: "a", Kind: Dropped, Key: "k", Token: 5}).lease("b", "k", 6, 100), "",
		},
		"the first was killed before the second got it": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).fault(Kill, "a", 0).lease("b", "k", 6, 100), "",
		},
		"another than the first was killed before the second got it": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).fault(Kill, "c", 0).lease("b", "k", 6, 100), RuleExclusion,
		},
		"leases overlap across a pause": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).fault(Pause, "a", 20).lease("b", "k", 6, 100), "",
		},
		"leases overlap after a pause was over": {
			new(tale).fault(Pause, "a", 1).wait(50).add("k", 0, OK).lease("a", "k", 5, 100).lease("b", "k", 6, 100), RuleExclusion,
		},
		"leases overlap across a cut connection": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).fault(Cut, "a", 20).lease("b", "k", 6, 100), RuleExclusion,
		},
		"a lease is lost before its worker could write it down": {
			new(tale).add("k", 0, OK).settle("a", "k", 4, StatusSettled).lease("b", "k", 6, 100).settle("b", "k", 6, StatusSettled), "",
		},
		"tokens shrink": {
			new(tale).add("k", 0, OK).lease("a", "k", 6, 5).wait(20).lease("b", "k", 5, 100), RuleTokens,
		},
		"a token is handed out twice": {
			new(tale).add("k", 0, OK).lease("a", "k", 6, 5).wait(20).lease("b", "k", 6, 100), RuleTokens,
		},
		"leases arrive in another order than they were granted in": {
			new(tale).add("k", 0, OK).wait(10).put(Event{Process: "b", Kind: Leased, Key: "k", Token: 6, Granted: 9e6, Until: 60e6}).
				put(Event{Process: "a", Kind: Leased, Key: "k", Token: 5, Granted: 5e6, Until: 8e6}), "",
		},
		"an acknowledged add leads to nothing": {
			new(tale).add("k", 0, OK), RuleAdd,
		},
		"an acknowledged add leads to nothing after a lease before it": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).add("k", 0, OK).settle("a", "k", 5, StatusSettled), RuleAdd,
		},
		"an add of unknown outcome leads to nothing": {
			new(tale).add("k", 0, Unknown), "",
		},
		"an add that was not answered leads to nothing": {
			new(tale).add("k", 0, ""), "",
		},
		"a refused add leads to nothing": {
			new(tale).add("k", 0, Fail), "",
		},
		"a refused add leads to a lease": {
			new(tale).add("k", 0, Fail).lease("a", "k", 5, 100), RuleUncalled,
		},
		"nobody added what runs": {
			new(tale).lease("a", "k", 5, 100), RuleUncalled,
		},
		"a delayed key comes when it is due": {
			new(tale).add("k", 50, OK).wait(50).lease("a", "k", 5, 100), "",
		},
		"a delayed key comes early": {
			new(tale).add("k", 50, OK).wait(20).lease("a", "k", 5, 100), RuleEarly,
		},
		"a delayed key was also added without delay": {
			new(tale).add("k", 50, OK).add("k", 0, Unknown).lease("a", "k", 5, 40).wait(60).lease("a", "k", 6, 100), "",
		},
		"a key comes before the delay of its settlement is over": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).settleAs("a", Event{Key: "k", Token: 5, Delay: 50e6}, StatusSettled).lease("a", "k", 6, 100), RuleEarly,
		},
		"a key comes when the delay of its settlement is over": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).settleAs("a", Event{Key: "k", Token: 5, Delay: 50e6}, StatusSettled).wait(50).lease("a", "k", 6, 100), "",
		},
		"a key that is done comes again": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).settle("a", "k", 5, StatusSettled).wait(10).lease("b", "k", 6, 100), RuleUndone,
		},
		"a key that is done comes again because it was added again": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).settle("a", "k", 5, StatusSettled).add("k", 0, OK).lease("b", "k", 6, 100), "",
		},
		"a key that is done comes again because its add was sent twice": {
			new(tale).add("k", 0, "").put(Event{Process: "p", Kind: OK, Op: Add, ID: 1, Key: "k", Sent: 2}).
				lease("a", "k", 5, 100).settle("a", "k", 5, StatusSettled).wait(10).lease("b", "k", 6, 100), "",
		},
		"a key that is done comes again because a delay was pending beside it": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).settleAs("a", Event{Key: "k", Token: 5, Delay: 50e6}, StatusRequeued).add("k", 0, OK).
				lease("a", "k", 6, 10).settle("a", "k", 6, StatusSettled).wait(60).lease("b", "k", 7, 100), "",
		},
		"a key that is done comes again after a pending delay was over": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 100).settleAs("a", Event{Key: "k", Token: 5, Within: 50e6}, StatusSettled).wait(60).
				lease("a", "k", 6, 10).settle("a", "k", 6, StatusSettled).wait(60).lease("b", "k", 7, 100), RuleUndone,
		},
		"a key whose settlement is not known comes again": {
			new(tale).add("k", 0, OK).lease("a", "k", 5, 10).settle("a", "k", 5, "").wait(20).lease("b", "k", 6, 100), "",
		},
		"keys are left": {
			new(tale).put(Event{Process: "nemesis", Kind: Left, Count: 2}), RuleLeft,
		},
		"nothing is left": {
			new(tale).put(Event{Process: "nemesis", Kind: Left}), "",
		},
		"an operation ends twice": {
			new(tale).add("k", 0, OK).put(Event{Process: "p", Kind: Unknown, Op: Add, ID: 1, Key: "k"}).lease("a", "k", 5, 100), RuleWellFormed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, found := Check(c.h.events, 0)
			switch {
			case c.want == "" && len(found) > 0:
				t.Errorf("found %v, there is nothing wrong", found)
			case c.want != "" && (len(found) != 1 || found[0].Rule != c.want):
				t.Errorf("found %v, want one of %q", found, c.want)
			}
		})
	}
}

func TestASummaryCountsWhatHappened(t *testing.T) {
	t.Parallel()
	h := new(tale).add("k", 0, OK).add("l", 0, Unknown).add("m", 0, Fail).lease("a", "k", 5, 10).fault(Pause, "a", 30).wait(15).lease("b", "k", 6, 100).
		settle("a", "k", 5, StatusLost).settle("b", "k", 6, StatusSettled).settle("b", "l", 9, "")
	s, found := Check(h.events, 0)
	if len(found) != 0 {
		t.Fatal(found)
	}
	want := Summary{Adds: 3, AddsAcknowledged: 1, AddsFailed: 1, AddsUnknown: 1, Leases: 2, LeasedAgain: 1, Settles: 3, SettlesAccepted: 1, SettlesLost: 1, SettlesUnknown: 1, Keys: 3}
	if s.Faults[Pause] != 1 {
		t.Errorf("faults %v, want one pause", s.Faults)
	}
	s.Faults = nil
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
}

func TestALogIsReadBackWithoutItsTornEnd(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	now := int64(7)
	for range 2 { // the second continues the first
		l, err := Create(path, "a", func() int64 { return now })
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Write(Event{Kind: Leased, Key: "k\n\"", Token: 1<<64 - 1}); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		want int
	}{{string(text), 2}, {string(text[:len(text)-1]), 1}, {string(text) + `{"at":`, 2}, {"", 0}} {
		got, err := Read(strings.NewReader(c.text))
		if err != nil || len(got) != c.want {
			t.Errorf("%q: %d events, %v, want %d", c.text, len(got), err, c.want)
		}
		if len(got) > 0 && (got[0] != Event{At: 7, Process: "a", Kind: Leased, Key: "k\n\"", Token: 1<<64 - 1}) {
			t.Errorf("read back %+v", got[0])
		}
	}
	if _, err := Read(strings.NewReader("frob\n")); err == nil {
		t.Error("a line that is no event was read")
	}
}
