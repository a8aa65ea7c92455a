package console

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/chromedp/cdproto/cdp/jsonv2"
	"github.com/chromedp/cdproto/tracing"
	"github.com/chromedp/chromedp"
)

// busy runs something and returns the processor time in milliseconds of each task of the pages'
// main threads meanwhile, the shortest first: unlike the time that a task takes, others on the
// machine do not lengthen it.
func (w *tab) busy(something func()) []float64 {
	w.t.Helper()
	events := make(chan []jsonv2.Value, 10_000)
	done := make(chan struct{})
	err := chromedp.Listen(w.ctx, func(e any) {
		switch e := e.(type) {
		case *tracing.EventDataCollected:
			events <- e.Value
		case *tracing.EventTracingComplete:
			close(done)
		}
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := chromedp.Call(w.ctx, tracing.Start, tracing.StartParams{TraceConfig: &tracing.TraceConfig{
		IncludedCategories: []string{"__metadata", "disabled-by-default-devtools.timeline"}, ExcludedCategories: []string{"*"},
	}}); err != nil {
		w.t.Fatal(err)
	}
	something()
	if _, err := chromedp.Call(w.ctx, tracing.End, struct{}{}); err != nil {
		w.t.Fatal(err)
	}
	select {
	case <-done:
	case <-time.After(long):
		w.t.Fatal("the browser does not end its trace")
	}
	close(events)
	type thread struct{ Pid, Tid int64 }
	type event struct {
		thread
		Name string
		Tdur float64 // microseconds
		Args struct{ Name string }
	}
	var tasks []event
	main := map[thread]bool{}
	for batch := range events {
		for _, v := range batch {
			var e event
			if err := json.Unmarshal(v, &e); err != nil {
				continue // its arguments have another form: it is neither of these
			}
			switch {
			case e.Name == "thread_name" && e.Args.Name == "CrRendererMain":
				main[e.thread] = true
			case e.Name == "RunTask":
				tasks = append(tasks, e)
			}
		}
	}
	var took []float64
	for _, e := range tasks {
		if main[e.thread] {
			took = append(took, e.Tdur/1000)
		}
	}
	if len(took) == 0 {
		w.t.Error("the browser reports no task of the page")
	}
	slices.Sort(took)
	return took
}
