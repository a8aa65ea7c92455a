package console

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// many is how many objects the collection has whose rows change: so many, or what
// DELTAPLANE_CONSOLE_ROWS says.
func many(t *testing.T) int {
	text := os.Getenv("DELTAPLANE_CONSOLE_ROWS")
	if text == "" {
		return 10_000
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("DELTAPLANE_CONSOLE_ROWS: %v", err)
	}
	return n
}

const (
	writers = 8
	changes = 10_000
	events  = 100
)

// writeAll calls write for each number below n, some at a time, and fails the test at the first
// error.
func writeAll(ctx context.Context, t *testing.T, n int, write func(ctx context.Context, i int) error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wait sync.WaitGroup
	for range writers {
		wait.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := write(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wait.Wait()
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
}

const rowsPath = "/api/v1/namespaces/many/configmaps"

// Rows that change all the time are shown as they are at last, wherever the list is scrolled to.
// How long the browser's main thread was held, and how long a change takes from its request to the
// screen, is printed: on a machine that does something else besides it is anything.
func TestManyRowsThatChangeAreShownAsTheyAre(t *testing.T) {
	n := many(t)
	create(t, "/api/v1/namespaces", `{"metadata":{"name":"many"}}`)
	writeAll(t.Context(), t, n, func(ctx context.Context, i int) error {
		return call(ctx, http.MethodPost, rowsPath, "application/json", fmt.Sprintf(`{"metadata":{"name":"row-%06d"},"data":{"k":"v"}}`, i))
	})
	w := open(t, shared.up.console)
	w.load(page("collections", "dev/configmaps.v1") + "?namespace=many")
	w.wait("all are there", fmt.Sprintf(`one("[role=grid]").ariaRowCount === "%d" && row("row-000000")`, n+1))
	if drawn := eval[int](w, `document.querySelectorAll(".vbody [role=row]").length`); drawn > 200 {
		t.Errorf("%d rows are in the document, want only those in view", drawn)
	}
	eval[any](w, `(() => {
		window.held = [];
		new PerformanceObserver((l) => { for (const e of l.getEntries()) held.push(e.duration); }).observe({type: "longtask"});
		const grid = document.querySelector("[role=grid]");
		let at = 0;
		window.scrolling = setInterval(() => { at++; grid.scrollTop = at % 3 ? grid.scrollTop + 150 : Math.random() * grid.scrollHeight; }, 100);
	})()`)
	begin := time.Now()
	busy := w.busy(func() {
		writeAll(t.Context(), t, changes, func(ctx context.Context, i int) error {
			return call(ctx, http.MethodPatch, fmt.Sprintf("%s/row-%06d", rowsPath, i%n), "application/merge-patch+json", fmt.Sprintf(`{"data":{"second":"%d"}}`, i))
		})
	})
	took := time.Since(begin)
	eval[any](w, `clearInterval(scrolling)`)
	held := eval[[]float64](w, `held`)
	slices.Sort(held)
	longest := 0.0
	if len(held) > 0 {
		longest = held[len(held)-1]
	}
	t.Logf("figure: %d rows, %d changes in %.1f s while scrolling: %d tasks over 50 ms, the longest %.0f ms", n, changes, took.Seconds(), len(held), longest)
	over, _ := slices.BinarySearch(busy, 50)
	if len(busy) > 0 {
		t.Logf("figure: of %d tasks %d took over 50 ms of processor time, the longest %.0f ms", len(busy), len(busy)-over, busy[len(busy)-1])
	}

	last := fmt.Sprintf("row-%06d", min(n, changes)-1)
	eval[any](w, fmt.Sprintf(`document.querySelector("[role=grid]").scrollTop = %d * 28 - 100`, min(n, changes)-1))
	w.wait("the last row that changed shows what it has", fmt.Sprintf(`row(%s)?.innerText.match(/\s2\s/)`, quote(last)))

	w.load(page("collections", "dev/configmaps.v1") + "?namespace=many")
	w.wait("the list is shown again", `row("row-000000")`)
	delays := make([]float64, 0, events)
	for i := range events {
		name := fmt.Sprintf("row-%06d", i%10)
		want := 3 + i/10
		eval[any](w, fmt.Sprintf(`(() => { %s
			window.seen = new Promise((done) => {
				const look = () => { if (Number(row(%s)?.querySelector("[aria-colindex='3']").innerText) === %d) done(Date.now()); else requestAnimationFrame(look); };
				look();
			});
		})()`, helpers, quote(name), want))
		sent := time.Now()
		patch(t, rowsPath+"/"+name, fmt.Sprintf(`{"data":{"more-%d":"x"}}`, i))
		seen := eval[float64](w, `Promise.race([seen, new Promise((done) => setTimeout(() => done(0), 60000))])`)
		if seen == 0 {
			t.Fatalf("change %d of %s does not come to the screen", i, name)
		}
		delays = append(delays, seen-float64(sent.UnixMicro())/1000)
	}
	slices.Sort(delays)
	t.Logf("figure: %d objects, from the request of a change to the screen: p50 %.0f ms, p99 %.0f ms", n, delays[events/2], delays[events*99/100])
}
