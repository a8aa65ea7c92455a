package top

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/meter"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// many is a document with more of everything than a screen has lines.
func many() *Document {
	d := &Document{Time: start, Silent: []Silence{{Part: "index", Address: "127.0.0.1:7441", Why: "does not answer: nothing came within 1s"}}}
	for i := range 40 {
		name := fmt.Sprintf("dev/things%d.v1.example.com", i)
		d.Reflections = append(d.Reflections, Reflection{Collection: name, State: "watching", Changes: new(float64(i)), Lag: float64(40-i) / 1000})
		d.Collections = append(d.Collections, Collection{Collection: name, State: "serving", Log: new(float64(i)), Lag: int64(40 - i)})
		d.Queues = append(d.Queues, Queue{Queue: fmt.Sprintf("dev/queue%d", i), Ready: int64(40 - i), Adds: new(float64(i)), State: "open"})
	}
	d.Held = []Key{{Queue: "dev/queue1", Key: "ns/slow", Held: new(95.0), Holder: "w"}, {Queue: "dev/queue2", Key: "ns/quick", Held: new(0.002)}}
	d.Backoffs = []Key{{Queue: "dev/queue1", Key: "ns/fails", Retries: 12, Due: new(61.5), Reason: "no \x1b[31mroom"}}
	return d
}

func TestANarrowTerminalCutsColumnsAndNotLines(t *testing.T) {
	t.Parallel()
	d := many()
	for width := 1; width <= 200; width += 3 {
		for _, height := range []int{1, 2, 12, 60, 300} {
			v := view{width: width, height: height}
			lines := v.screen(d)
			if len(lines) > height {
				t.Fatalf("%d lines in a terminal of %d", len(lines), height)
			}
			for _, l := range lines {
				if n := utf8.RuneCountInString(l.text); n > width || strings.ContainsAny(l.text, "\n\x1b") {
					t.Fatalf("a line of %d characters in a terminal of %d: %q", n, width, l.text)
				}
			}
		}
	}
	header := func(width int) string {
		v := view{width: width, height: 60}
		return strings.Join(strings.Fields(v.screen(d)[3].text), " ")
	}
	for width, want := range map[int]string{
		30:  "REFLECTION",
		40:  "REFLECTION CHANGES/S",
		80:  "REFLECTION CHANGES/S LAG PENDING STATE OBJECTS ERROR",
		200: "REFLECTION CHANGES/S LAG PENDING STATE OBJECTS ERROR",
	} {
		if got := header(width); got != want {
			t.Errorf("%d characters have the columns %q, want %q", width, got, want)
		}
	}
	v := view{width: 80, height: 60}
	for _, s := range d.sections("", byBusy) {
		if !slices.ContainsFunc(v.screen(d), func(l line) bool { return l.head && strings.HasPrefix(l.text, s.header[0]) }) {
			t.Errorf("%s has no lines on a screen of 60", s.header[0])
		}
	}
}

func TestKeysSortAndFilter(t *testing.T) {
	t.Parallel()
	first := func(v *view) string {
		lines := v.screen(many())
		return strings.Fields(lines[4].text)[0]
	}
	v := &view{width: 100, height: 40}
	if got := first(v); got != "dev/things39.v1.example.com" {
		t.Errorf("the busiest is %s", got)
	}
	v.press('s')
	if got := first(v); got != "dev/things0.v1.example.com" {
		t.Errorf("the furthest behind is %s", got)
	}
	v.press('s')
	v.press('s')
	if got := first(v); got != "dev/things39.v1.example.com" {
		t.Errorf("after all orders the first is %s", got)
	}
	for _, key := range "/Things1x\x7f7" {
		if v.press(key) {
			t.Fatalf("%q ends it", key)
		}
	}
	if !strings.HasPrefix(v.screen(many())[0].text, "/Things17_") {
		t.Errorf("while it is typed the filter is shown as %q", v.screen(many())[0].text)
	}
	if quit := v.press('q'); quit || v.filter != "Things17q" {
		t.Errorf("q is a letter of a filter: %v, %q", quit, v.filter)
	}
	v.press('\x7f')
	v.press('\r')
	if got := first(v); got != "dev/things17.v1.example.com" || len(v.screen(many())) != 8 {
		t.Errorf("the filter leaves %s, %d lines", got, len(v.screen(many())))
	}
	v.press(escape)
	if got := first(v); got != "dev/things39.v1.example.com" {
		t.Errorf("without the filter the first is %s", got)
	}
	for _, key := range "q\x03\x04" {
		if !(&view{}).press(key) {
			t.Errorf("%q does not end it", key)
		}
	}
	if v := (&view{typing: true}); !v.press('\x03') {
		t.Error("Ctrl-C does not end it while a filter is typed")
	}
}

func TestTheSlowestKeysComeFirst(t *testing.T) {
	t.Parallel()
	held := func(key string, since time.Duration) item {
		return item{"dev/job", &queuev1.Item{Key: key, LeasedAt: timestamppb.New(start.Add(-since)), Holder: "w"}}
	}
	delayed := func(key string, retries int64, due time.Duration) item {
		return item{"dev/job", &queuev1.Item{Key: key, NumRequeues: retries, DelayedUntil: timestamppb.New(start.Add(due)), LastReason: "no room"}}
	}
	d := document(meter.Set{}, &sample{
		at: start, held: []item{held("a", time.Second), held("b", time.Hour), held("later", -time.Second)},
		backoffs: []item{delayed("c", 2, time.Minute), delayed("asked", 0, time.Second), delayed("d", 9, time.Second)}, unlooked: 7,
	})
	var b strings.Builder
	if err := d.print(&b); err != nil {
		t.Fatal(err)
	}
	_, keys, _ := strings.Cut(b.String(), "HELD LONGEST")
	if got := strings.Join(strings.Fields(keys), " "); got !=
		"FOR QUEUE HOLDER RETRIES b 60m dev/job w 0 a 1s dev/job w 0 later 0s dev/job w 0 "+
			"DEEPEST BACK-OFF FAILURES QUEUE DUE IN LAST REASON d 9 dev/job 1s no room c 2 dev/job 1m0s no room" {
		t.Errorf("printed %s", got)
	}
	if !strings.HasPrefix(b.String(), "7 held and delayed keys were not looked at\n") {
		t.Errorf("printed\n%s", b.String())
	}
}
