package console

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	devpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// tap lists in `calls` which views the page begins and ends from now on, such as "Subscribe 7" when
// the call begins, and "Subscribe 7 answered". First is run before a call goes to the server.
func (w *tab) tap(first string) {
	w.t.Helper()
	eval[any](w, fmt.Sprintf(`(() => {
		const real = window.fetch;
		const held = new Promise((done) => { window.release = done; });
		window.calls = [];
		window.fetch = async (url, options) => {
			const name = url.split("/").pop();
			if (name !== "Subscribe" && name !== "Unsubscribe") return real(url, options);
			// The fields are the session, whose length is the second byte, and the number.
			const call = name + " " + options.body[options.body[1] + 3];
			calls.push(call);
			%s
			const answer = await real(url, options);
			calls.push(call + " answered");
			return answer;
		};
	})()`, first))
}

// follow goes to another page without loading anything.
func (w *tab) follow(page string) {
	w.t.Helper()
	eval[any](w, "location.hash = "+quote("#/"+page))
}

// ended is that each view that the page began has been ended.
const ended = `calls.filter((c) => /^Subscribe \d+$/.test(c)).every((c) => calls.includes(c.replace("S", "Uns") + " answered"))`

func TestAViewThatIsLeftIsEndedAfterItHasBegun(t *testing.T) {
	w := open(t, shared.up.console)
	w.load("queues")
	w.wait("it is live", `one(".link.live")`)
	w.tap(`if (name === "Subscribe") await held;`)
	w.follow("collections")
	w.wait("the view begins", `calls.some((c) => c.startsWith("Subscribe"))`)
	w.follow("nowhere")
	w.heading("There is no such page")
	eval[any](w, "release()")
	w.wait("nothing is left", ended)
	calls := eval[[]string](w, "calls")
	for i, c := range calls {
		if number, ok := strings.CutPrefix(c, "Unsubscribe "); ok && slices.Contains(calls[i:], "Subscribe "+number+" answered") {
			t.Errorf("a view was ended before it had begun: %q", calls)
		}
	}
}

func TestACallThatFailsOnceIsMadeAgain(t *testing.T) {
	views(t)
	w := open(t, shared.up.console)
	w.load("queues")
	w.wait("it is live", `one(".link.live")`)
	w.tap(`if (calls.indexOf(call) === calls.length - 1) throw new TypeError("the network is away");`)
	w.follow(page("queues", "shown/keys"))
	w.wait("the keys are shown", `row("default/waits") && !one(".note.failing")`)
	w.follow("nowhere")
	w.wait("nothing is left", ended)
}

// hide has the page see itself hidden or shown.
func (w *tab) hide(hidden bool) {
	w.t.Helper()
	eval[any](w, fmt.Sprintf(`(() => {
		Object.defineProperty(document, "hidden", {configurable: true, get: () => %t});
		document.dispatchEvent(new Event("visibilitychange"));
	})()`, hidden))
}

func TestAHiddenPageThatLostItsServerRestsUntilItIsSeen(t *testing.T) {
	address := port(t)
	p := serve(t, address, shared.up.queue)
	w := open(t, address)
	w.expected = []string{"net::ERR_"}
	w.load("queues")
	w.wait("it is live", `one(".link.live")`)
	stop(t, p)
	w.wait("it is cut off", `one(".link.lost")`)
	w.hide(true)
	w.wait("it waits to be seen", `one(".link.connecting")`)
	p = serve(t, address, shared.up.queue)
	defer stop(t, p)
	w.hide(false)
	w.wait("it is live again", `one(".link.live")`)
}

func TestATabOpenedInTheBackgroundGivesItsConnectionBack(t *testing.T) {
	w := open(t, shared.up.console)
	if _, err := chromedp.Call(w.ctx, devpage.AddScriptToEvaluateOnNewDocument, devpage.AddScriptToEvaluateOnNewDocumentParams{Source: `(() => {
		Object.defineProperty(document, "hidden", {configurable: true, get: () => true});
		const real = window.fetch;
		window.fetch = (url, options) => {
			if (url.endsWith("/Open")) options.signal.addEventListener("abort", () => { window.rested = true; });
			return real(url, options);
		};
	})()`}); err != nil {
		t.Fatal(err)
	}
	w.load("queues")
	w.wait("it gives its connection back", `window.rested && one(".link.connecting")`)
	w.hide(false)
	w.wait("it is live", `one(".link.live")`)
}
