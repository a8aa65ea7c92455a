package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// tab is one tab of the browser, on one console.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu       sync.Mutex
	messages []string
	// expected are parts of messages that are no fault, as when a server is stopped.
	expected []string
}

// open makes a tab. What the page writes to its console, refusals of the content security policy
// among it, fails the test at its end.
func open(t *testing.T, address string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(shared.browser)
	w := &tab{t: t, ctx: ctx, base: "http://" + address}
	messages := chromedp.Console(ctx)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for m, err := range messages {
			if err != nil {
				return
			}
			w.mu.Lock()
			w.messages = append(w.messages, fmt.Sprintf("%s: %s (%s)", m.Type, m.Text, m.URL))
			w.mu.Unlock()
		}
	}()
	w.screen(1280, 800, "light")
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`location.hash + "\n" + document.body.innerText`))
			t.Logf("the page:\n%s", text)
		}
		cancel()
		<-read
		for _, m := range w.messages {
			if !w.expects(m) {
				t.Errorf("the page wrote to its console: %s", m)
			}
		}
	})
	return w
}

func (w *tab) expects(message string) bool {
	for _, part := range w.expected {
		if strings.Contains(message, part) {
			return true
		}
	}
	return false
}

// screen sets what the page is shown on.
func (w *tab) screen(width, height int64, scheme string) {
	w.t.Helper()
	_, err := chromedp.Call(w.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 500,
	})
	if err == nil {
		_, err = chromedp.Call(w.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}},
		})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// load opens a page as somebody does who follows a link from elsewhere.
func (w *tab) load(page string) {
	w.t.Helper()
	if err := chromedp.Do(w.ctx, chromedp.Navigate("about:blank"), chromedp.Navigate(w.base+"/#/"+page)); err != nil {
		w.t.Fatalf("load %s: %v", page, err)
	}
}

// page is the address of a page from its parts.
func page(parts ...string) string {
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}

// eval is the value of an expression on the page.
func eval[T any](w *tab, expression string) T {
	w.t.Helper()
	value, err := chromedp.Run(w.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		w.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// helpers are what conditions on the page are made of.
const helpers = `
const one = (q) => document.querySelector(q);
const all = (q) => [...document.querySelectorAll(q)];
const text = (q) => all(q).map((e) => e.innerText).join("\n");
const button = (name) => all("button, a").find((e) => e.innerText.trim().startsWith(name) && !e.disabled);
const field = (name) => all("input, select").find((e) => (e.ariaLabel ?? e.closest("label")?.innerText ?? "").trim().startsWith(name));
const row = (name) => all(".vbody [role=row], tbody tr").find((e) => e.innerText.includes(name));
`

// wait waits until a condition holds on the page.
func (w *tab) wait(what, condition string) {
	w.t.Helper()
	script := fmt.Sprintf(`(() => { %s
		const end = performance.now() + %d;
		return new Promise((done) => {
			const look = () => {
				let holds = false;
				try { holds = Boolean(%s); } catch { /* not there yet */ }
				if (holds) done(true); else if (performance.now() > end) done(false); else setTimeout(look, 20);
			};
			look();
		});
	})()`, helpers, long.Milliseconds(), condition)
	if !eval[bool](w, script) {
		w.t.Fatalf("it does not come that %s", what)
	}
}

// point is where the middle of an element is.
type point struct{ X, Y float64 }

// click clicks on what an expression finds, with the mouse.
func (w *tab) click(what, expression string) {
	w.t.Helper()
	w.wait(what+" is there", fmt.Sprintf("(%s).getClientRects().length", expression))
	at := eval[point](w, fmt.Sprintf(`(() => { %s const e = %s; e.scrollIntoView({block: "nearest"}); const b = e.getBoundingClientRect(); return {X: b.x + b.width / 2, Y: b.y + b.height / 2}; })()`, helpers, expression))
	if err := chromedp.Do(w.ctx, chromedp.MouseClickXY(at.X, at.Y)); err != nil {
		w.t.Fatalf("click %s: %v", what, err)
	}
}

func (w *tab) press(name string) {
	w.t.Helper()
	w.click("the button "+name, fmt.Sprintf("button(%s)", quote(name)))
}

// confirm answers the question that a button has led to.
func (w *tab) confirm(verb string) {
	w.t.Helper()
	w.click("the answer "+verb, fmt.Sprintf(`all("dialog[open] button").find((e) => e.innerText === %s && !e.disabled)`, quote(verb)))
	w.wait("the question is answered", `!one("dialog")`)
}

// write replaces what a field holds, key by key.
func (w *tab) write(field, value string) {
	w.t.Helper()
	w.wait("the field "+field+" is there", fmt.Sprintf(`field(%s)`, quote(field)))
	eval[any](w, fmt.Sprintf(`(() => { %s const f = field(%s); f.focus(); f.select?.(); })()`, helpers, quote(field)))
	keys := value
	if keys == "" {
		keys = kb.Backspace
	}
	if err := chromedp.Do(w.ctx, chromedp.KeyEvent(keys)); err != nil {
		w.t.Fatalf("write into %s: %v", field, err)
	}
}

// keys presses keys wherever the focus is.
func (w *tab) keys(keys string, modifiers ...chromedp.Modifier) {
	w.t.Helper()
	var options []chromedp.KeyOption
	if len(modifiers) > 0 {
		options = append(options, chromedp.KeyModifiers(modifiers...))
	}
	if err := chromedp.Do(w.ctx, chromedp.KeyEvent(keys, options...)); err != nil {
		w.t.Fatalf("press %q: %v", keys, err)
	}
}

// search goes to the search field by its key. A page that takes the key for that gets no letter.
func (w *tab) search(text string) {
	w.t.Helper()
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeKeyDown, input.DispatchKeyEventTypeKeyUp} {
		key := input.DispatchKeyEventParams{Type: kind, Key: "/", Code: "Slash", WindowsVirtualKeyCode: 191}
		if kind == input.DispatchKeyEventTypeKeyDown {
			key.Text = "/"
		}
		if _, err := chromedp.Call(w.ctx, input.DispatchKeyEvent, key); err != nil {
			w.t.Fatalf("press /: %v", err)
		}
	}
	w.wait("the search field has the focus", `document.activeElement === field("Search")`)
	w.keys(text)
}

// heading waits for the page with a heading.
func (w *tab) heading(name string) {
	w.t.Helper()
	w.wait("the page "+name+" is shown", fmt.Sprintf(`one("main h1")?.innerText === %s`, quote(name)))
}

func quote(text string) string {
	out, _ := json.Marshal(text)
	return string(out)
}

// violation is a finding of axe.
type violation struct {
	ID, Help string
	Nodes    []struct{ HTML, FailureSummary string }
}

// accessible fails the test for each finding of axe on the page as it is.
func (w *tab) accessible(where string) {
	w.t.Helper()
	if !eval[bool](w, "typeof axe === 'object'") {
		eval[any](w, shared.axe+";0")
	}
	for _, v := range eval[[]violation](w, "axe.run().then((r) => r.violations.map((v) => ({ID: v.id, Help: v.help, Nodes: v.nodes.map((n) => ({HTML: n.html, FailureSummary: n.failureSummary}))})))") {
		for _, n := range v.Nodes {
			w.t.Errorf("%s: %s (%s): %s: %s", where, v.Help, v.ID, n.HTML, n.FailureSummary)
		}
	}
}
