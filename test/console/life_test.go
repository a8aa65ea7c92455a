package console

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// serve starts a console of its own on the shared system, for a test that stops it or that needs
// other services.
func serve(t *testing.T, address, queue string) *process {
	t.Helper()
	p, err := start("serve", "console", "--listen", address, "--admin-listen", "off",
		"--index-url", shared.up.index, "--queue-url", queue, "--reflector-url", shared.up.reflector)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.await(address); err != nil {
		t.Fatal(err)
	}
	return p
}

func stop(t *testing.T, p *process) {
	t.Helper()
	if err := p.stop(); err != nil {
		t.Errorf("serve console: %v\n%s", err, p.output())
	}
}

func port(t *testing.T) string {
	t.Helper()
	address, err := free()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

func TestAPageThatLostItsServerSaysSoAndGoesOnByItself(t *testing.T) {
	create(t, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"missed"},"data":{"step":"before"}}`)
	address := port(t)
	p := serve(t, address, shared.up.queue)
	w := open(t, address)
	w.expected = []string{"net::ERR_"}
	w.load(page("collections", "dev/configmaps.v1", "default/missed"))
	w.wait("the object is shown", `text(".yaml").includes("step: before")`)
	stop(t, p)
	w.wait("the page says since when it is cut off, and of when it is", `/Disconnected since \d\d:\d\d:\d\d\. What is shown was known at \d\d:\d\d:\d\d/.test(text(".banner")) && text(".yaml").includes("step: before")`)
	patch(t, "/api/v1/namespaces/default/configmaps/missed", `{"data":{"step":"after"}}`)
	p = serve(t, address, shared.up.queue)
	defer stop(t, p)
	w.wait("it returns by itself with what it missed", `!one(".banner") && one(".link.live") && text(".yaml").includes("step: after")`)
}

func TestATokenIsAskedForKeptInTheTabAndRefused(t *testing.T) {
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte("right-0123456789 operator\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	queue, address := port(t), port(t)
	q, err := start("serve", "queue", "--listen", queue, "--admin-listen", "off", "--queue-data-dir", filepath.Join(dir, "queue"), "--auth-token-file", tokens)
	if err != nil {
		t.Fatal(err)
	}
	defer stop(t, q)
	p := serve(t, address, queue)
	defer stop(t, p)
	w := open(t, address)
	w.expected = []string{"401"}
	w.load("queues")
	w.heading("Sign in")
	w.accessible("sign in")
	w.write("Bearer token", "wrong")
	w.press("Sign in")
	w.wait("a wrong token is refused", `text(".note").includes("The token was refused") && one("main h1").innerText === "Sign in"`)
	w.write("Bearer token", "right-0123456789")
	w.press("Sign in")
	w.heading("Queues")
	w.wait("the page shows the queues", `text(".vempty").includes("No queue is configured")`)
	if kept := eval[string](w, `sessionStorage.length + " " + localStorage.length + " " + document.cookie`); kept != "1 0 " {
		t.Errorf("the tab keeps %q, want one entry of its session and nothing else", kept)
	}
	w.press("Sign out")
	w.heading("Sign in")
}

func TestEveryPageIsAccessibleInLightAndDark(t *testing.T) {
	w := open(t, shared.up.console)
	for _, scheme := range []string{"light", "dark"} {
		w.screen(1280, 800, scheme)
		for _, v := range views(t) {
			w.load(v.address)
			w.wait("the page "+v.name+" shows what it is for", v.shown)
			w.accessible(v.name + ", " + scheme)
		}
	}
	w.load(page("queues", "shown/keys"))
	w.press("Pause")
	w.wait("the question is there", `one("dialog[open]")`)
	w.accessible("question")
}

func TestNoPageIsWiderThanANarrowScreen(t *testing.T) {
	w := open(t, shared.up.console)
	w.screen(360, 740, "light")
	for _, v := range views(t) {
		w.load(v.address)
		w.wait("the page "+v.name+" shows what it is for", v.shown)
		if over := eval[string](w, `(() => { const w = document.documentElement.scrollWidth; return w > 360 ? w + ": " + [...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > 361).slice(0, 3).map((e) => e.outerHTML.slice(0, 120)).join(" | ") : ""; })()`); over != "" {
			t.Errorf("%s is %s px wide on a screen of 360", v.name, over)
		}
	}
}

// Somebody without a mouse goes to a queue, chooses a key, has it retried, and returns.
func TestTheKeyboardAloneIsEnough(t *testing.T) {
	command(t, "queue", "configure", "typed/keys")
	command(t, "queue", "add", "typed/keys", "default/a", "default/b", "--after", "2h")
	w := open(t, shared.up.console)
	w.load("flow")
	w.wait("it is live", `one(".link.live")`)
	w.keys(kb.Tab)
	w.wait("the first stop leads to the page", `document.activeElement.innerText === "Skip to the page"`)
	w.keys(kb.Enter)
	w.wait("the page has the focus", `document.activeElement.id === "main"`)
	w.keys("k", chromedp.ModifierCtrl)
	w.wait("Ctrl-K leads to the search field", `document.activeElement === field("Search")`)
	w.keys("typed/keys")
	w.wait("the queue is found", `text("#found li.active").includes("typed/keys")`)
	w.keys(kb.Enter)
	w.heading("typed/keys")
	w.wait("the heading has the focus", `document.activeElement === one("main h1")`)
	w.wait("the keys are shown", `row("default/b")`)
	// From the heading on, Tab reaches the list at last.
	for range 30 {
		if eval[bool](w, `document.activeElement.getAttribute("role") === "grid"`) {
			break
		}
		w.keys(kb.Tab)
	}
	w.wait("the list has the focus", `document.activeElement.getAttribute("role") === "grid"`)
	w.keys(kb.ArrowDown + kb.ArrowDown + " ")
	w.wait("the second key is chosen, and said to be the active one", `document.getElementById(document.activeElement.getAttribute("aria-activedescendant")).innerText.includes("default/b") && text(".bulk").includes("1 key selected")`)
	w.keys(kb.Enter)
	w.heading("default/b")
	w.wait("the actions are there", `button("Retry now")`)
	for range 30 {
		if eval[bool](w, `document.activeElement.innerText === "Retry now"`) {
			break
		}
		w.keys(kb.Tab)
	}
	w.keys(kb.Enter)
	w.wait("the question has the focus", `one("dialog")?.contains(document.activeElement)`)
	w.keys(kb.Escape)
	w.wait("Escape answers no, and the focus returns", `!one("dialog") && document.activeElement.innerText === "Retry now"`)
	w.keys(kb.Enter)
	w.wait("the question is there again", `one("dialog[open]")`)
	w.keys(kb.Tab + kb.Enter)
	w.wait("the key is ready", `text(".said").includes("default/b waits now") && text(".causes").includes("ready")`)
}

// The focus and the place in a list stay while its rows change.
func TestTheFocusStaysWhileRowsChange(t *testing.T) {
	command(t, "queue", "configure", "moving/keys")
	command(t, "queue", "add", "moving/keys", "default/m", "default/n", "--after", "2h")
	w := open(t, shared.up.console)
	w.load(page("queues", "moving/keys"))
	w.wait("the keys are shown", `row("default/n")`)
	w.click("the row", `row("default/n").querySelector("[role=gridcell]:last-child")`)
	w.heading("default/n")
	w.load(page("queues", "moving/keys"))
	w.wait("the keys are shown", `row("default/n")`)
	eval[any](w, `document.querySelector("[role=grid]").focus()`)
	w.keys(kb.End)
	active := `document.getElementById(document.activeElement.getAttribute("aria-activedescendant"))`
	w.wait("the last key is active", active+`.innerText.includes("default/n")`)
	command(t, "queue", "add", "moving/keys", "default/a", "default/b", "--after", "1h")
	w.wait("keys that come before it leave it active", `row("default/a") && `+active+`.innerText.includes("default/n")`)
}
