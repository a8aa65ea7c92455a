package reflector

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/delta"
)

// When each request is made, to the nanosecond: what needs no wait has none, and what needs one has
// it.
func TestTheTimeOfEveryRequestAfterAnEnd(t *testing.T) {
	t.Parallel()
	bad := mark("11") + "\nthis is not JSON"
	for name, tc := range map[string]struct {
		*script
		lasts time.Duration
		want  []string
		told  string // reason of the only failure that is logged; empty: none is
	}{
		"an expired list is repeated at once, without back-off": {
			&script{lists: []answer{refusal(410, "Expired", ""), empty("10")}, watches: []answer{{}}},
			time.Second,
			[]string{"list 0 @0s", "list  @0s", "watch 10 @0s"},
			"EXPIRED",
		},
		"a list whose version is too large is repeated at once": {
			&script{w: "9", lists: []answer{{code: 504, body: `{"kind":"Status","code":504,"reason":"Timeout","message":"Too large resource version: 9, current: 8"}`}, empty("10")}, watches: []answer{told(410, "Expired"), {}}},
			2 * time.Second,
			[]string{"watch 9 @0s", "list 9 @1s", "list  @1s", "watch 10 @1s"},
			"EXPIRED",
		},
		"the most recent state is not asked for again without back-off": {
			&script{lists: []answer{refusal(410, "Expired", ""), refusal(410, "Expired", ""), empty("10")}, watches: []answer{{}}},
			2 * time.Second,
			[]string{"list 0 @0s", "list  @0s", "list  @1s", "watch 10 @1s"},
			"EXPIRED",
		},
		"a watch that closes after an event, or after a second, is opened again without delay": {
			&script{lists: []answer{empty("10")}, watches: []answer{{body: mark("11"), ends: io.EOF}, {ends: io.EOF, lasts: time.Second}, {}}},
			2 * time.Second,
			[]string{"list 0 @0s", "watch 10 @0s", "watch 11 @0s", "watch 11 @1s"},
			"",
		},
		"a very short watch counts as a failure": {
			&script{lists: []answer{empty("10")}, watches: []answer{{ends: io.EOF, lasts: time.Second - 1}, {}}},
			3 * time.Second,
			[]string{"list 0 @0s", "watch 10 @0s", "list 10 @1.999999999s", "watch 10 @1.999999999s"},
			"SHORT_WATCH",
		},
		"a connection that breaks after an event is like a close, and reported": {
			&script{lists: []answer{empty("10")}, watches: []answer{{body: mark("11"), ends: syscall.ECONNRESET}, {}}},
			time.Second,
			[]string{"list 0 @0s", "watch 10 @0s", "watch 11 @0s"},
			"UNREACHABLE",
		},
		"a connection that breaks after a while is like a close, and reported": {
			&script{lists: []answer{empty("10")}, watches: []answer{{lasts: time.Minute, ends: syscall.ECONNRESET}, {}}},
			90 * time.Second,
			[]string{"list 0 @0s", "watch 10 @0s", "watch 10 @1m0s"},
			"UNREACHABLE",
		},
		"too many requests in the stream wait, and make no list": {
			&script{lists: []answer{empty("10")}, watches: []answer{told(429, "TooManyRequests"), told(429, "TooManyRequests"), {}}},
			10 * time.Second,
			[]string{"list 0 @0s", "watch 10 @0s", "watch 10 @1s", "watch 10 @3s"},
			"THROTTLED",
		},
		"a watch that is refused waits as long as the server says": {
			&script{lists: []answer{empty("10")}, watches: []answer{refusal(429, "TooManyRequests", "7"), {}}},
			10 * time.Second,
			[]string{"list 0 @0s", "watch 10 @0s", "watch 10 @7s"},
			"THROTTLED",
		},
		"a list that is refused waits at least as long as the server says": {
			&script{lists: []answer{refusal(429, "TooManyRequests", "5"), refusal(503, "ServiceUnavailable", "1"), empty("10")}, watches: []answer{{}}},
			10 * time.Second,
			[]string{"list 0 @0s", "list 0 @5s", "list 0 @7s", "watch 10 @7s"},
			"THROTTLED SOURCE_FAILED",
		},
		"lists that events without a name make due become rarer": {
			&script{lists: []answer{empty("10"), empty("11")}, watches: []answer{{body: bad}}},
			40 * time.Second,
			[]string{
				"list 0 @0s", "watch 10 @0s", "list 11 @1s", "watch 11 @1s", "list 11 @3s", "watch 11 @3s", "list 11 @7s", "watch 11 @7s",
				"list 11 @15s", "watch 11 @15s", "list 11 @31s", "watch 11 @31s",
			},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := tc.play(t, tc.lasts)
			if diff := cmp.Diff(tc.want, got.calls); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			words := strings.Fields(tc.told)
			if n := strings.Count(got.log, "reflection failed"); n != len(words) {
				t.Errorf("%d failures logged, want %d:\n%s", n, len(words), got.log)
			}
			for _, word := range words {
				if !strings.Contains(got.log, "reason="+word+" ") {
					t.Errorf("no %s in\n%s", word, got.log)
				}
			}
			if (got.failures == 0) != (len(words) == 0) {
				t.Errorf("%d failures counted, want what was told counted", got.failures)
			}
		})
	}
}

func TestWatchesLastAtLeastTheRequestedTime(t *testing.T) {
	t.Parallel() // TestWatchTimeout: 30 min -> [1800,3600], 1 s -> [300,600]
	for least, seconds := range map[time.Duration]int{30 * time.Minute: 1800, time.Second: 300, 0: 300} {
		s := &script{cfg: Config{MinWatchTimeout: least}, lists: []answer{empty("10")}}
		for i := range 20 {
			s.watches = append(s.watches, answer{body: mark(strconv.Itoa(11 + i)), ends: io.EOF})
		}
		s.watches = append(s.watches, answer{})
		got := s.play(t, time.Second)
		distinct, beyond := map[string]bool{}, 0
		for _, asked := range got.asked {
			n, err := strconv.Atoi(asked)
			if err != nil || n < seconds || n >= 2*seconds {
				t.Errorf("%v: a watch of %q seconds, want %d to %d", least, asked, seconds, 2*seconds)
			}
			if distinct[asked] = true; n > seconds+seconds/4 {
				beyond++
			}
		}
		if len(got.asked) != 21 || len(distinct) < 3 || beyond == 0 {
			t.Errorf("%v: %d watches, %d distinct times, want 21 random ones", least, len(got.asked), len(distinct))
		}
	}
}

func TestAMissingEndOfTheInitialStateIsLoggedEveryTenSeconds(t *testing.T) {
	t.Parallel()
	s := &script{cfg: Config{WatchList: WatchListAlways}, lists: []answer{empty("10")}, watches: []answer{{}}}
	if got := s.play(t, time.Second); !got.list.streaming || !got.list.proto(time.Now()).GetStreaming() {
		t.Errorf("progress %+v, want it told that the list is a stream", got.list)
	}
	got := s.play(t, 40*time.Second)
	if diff := cmp.Diff([]string{"stream  @0s", "list 0 @40s"}, got.calls[:min(2, len(got.calls))]); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	for i := range 4 {
		if want := fmt.Sprintf("duration=%v", time.Duration(i+1)*10*time.Second); strings.Count(got.log, want) != 1 {
			t.Errorf("no warning with %s in\n%s", want, got.log)
		}
	}
	if n := strings.Count(got.log, "the initial state is not complete yet"); n != 4 {
		t.Errorf("%d warnings, want 4:\n%s", n, got.log)
	}
}

// A leader's shadow forgets deletions after the tombstones' time, or it would grow for ever.
func TestALeaderForgetsOldDeletions(t *testing.T) {
	t.Parallel()
	for lasts, forgotten := range map[time.Duration]bool{50 * time.Minute: false, 70 * time.Minute: true} {
		s := &script{shadow: delta.NewShadow(time.Hour), cfg: Config{QuietAfter: 24 * time.Hour, MinWatchTimeout: 24 * time.Hour}, w: "10"}
		for i := range 70 {
			s.watches = append(s.watches, answer{body: mark(strconv.Itoa(11 + i)), lasts: time.Minute, ends: io.EOF})
		}
		s.watches = append(s.watches, answer{})
		s.seed = func(now time.Time) {
			o := delta.Object{Key: "default/a", UID: "u", RV: "5", Hash: 1}
			s.shadow.Upsert(delta.Added, &o, 1, now)
			s.shadow.Delete(delta.Observed, &o, 1, now)
		}
		s.play(t, lasts)
		if s.shadow.Empty() != forgotten {
			t.Errorf("after %v: empty %v, want %v", lasts, s.shadow.Empty(), forgotten)
		}
	}
}
