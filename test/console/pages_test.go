package console

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// view is a page with a heading, and what it shows when it has everything.
type view struct {
	name, address, heading, title string
	// shown is a condition that holds when the page shows what it is for.
	shown string
}

// prepared makes what the pages show, once for all tests.
var prepared sync.Once

// views are all pages. They show a queue with keys that nobody works, and a node.
func views(t *testing.T) []view {
	t.Helper()
	prepared.Do(func() {
		command(t, "queue", "configure", "shown/keys")
		command(t, "queue", "add", "shown/keys", "default/waits", "default/other")
		command(t, "queue", "add", "shown/keys", "default/later", "--after", "2h")
		create(t, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"shown"},"data":{"note":"a: b","number":"7"}}`)
	})
	return []view{
		{"flow", "flow", "Flow", "Flow", `row("dev/pods.v1") && row("shown/keys") && all(".stage .spark canvas").length === 5`},
		{"collections", "collections", "Collections", "Collections", `row("dev/configmaps.v1")?.innerText.includes("serving")`},
		{"collection", page("collections", "dev/configmaps.v1"), "dev/configmaps.v1", "dev/configmaps.v1", `row("shown")`},
		{"object", page("collections", "dev/configmaps.v1", "default/shown"), "default/shown", "default/shown", `text(".yaml").includes("number: \"7\"")`},
		{"queues", "queues", "Queues", "Queues", `row("shown/keys")?.innerText.includes("2")`},
		{"queue", page("queues", "shown/keys"), "shown/keys", "shown/keys", `row("default/waits") && row("default/later")?.innerText.includes("delayed") && text("#latencies + table").includes("ready")`},
		{"key", page("queues", "shown/keys", "default/waits"), "default/waits", "default/waits in shown/keys", `text(".causes").includes("no_worker") && text(".timeline").includes("now")`},
		{"nodes", "nodes?node=node-1", "Nodes", "node-1", `row("node-1")?.innerText.includes("ready") && text(".details").includes("Taints")`},
		{"traces", "traces", "Traces", "Traces", `one("[role=grid]") && text(".filters").includes("newest first")`},
	}
}

func TestEveryPageIsShownFromItsAddress(t *testing.T) {
	w := open(t, shared.up.console)
	for _, v := range views(t) {
		w.load(v.address)
		w.heading(v.heading)
		w.wait("the page "+v.name+" shows what it is for", v.shown)
		w.wait("its title says what it is", fmt.Sprintf("document.title === %s", quote(v.title+" · Deltaplane")))
		w.wait("it is live", `one(".link.live")`)
	}
	w.load("nowhere")
	w.heading("There is no such page")
}

func TestACollectionIsChosenByIndexNamespaceSelectorAndCEL(t *testing.T) {
	for i, labels := range []string{`"tier":"web"`, `"tier":"web","odd":"yes"`, `"tier":"store"`} {
		create(t, "/api/v1/namespaces/default/configmaps", fmt.Sprintf(`{"metadata":{"name":"chosen-%d","labels":{%s}},"data":{"n":"%d"}}`, i, labels, i))
	}
	w := open(t, shared.up.console)
	w.load(page("collections", "dev/configmaps.v1"))
	w.write("Key contains", "chosen-")
	w.press("Apply")
	w.wait("the three are shown", `row("chosen-0") && row("chosen-2") && text(".head").includes("3 objects")`)
	w.press("More conditions")
	w.write("Label selector", "tier=web")
	w.press("Apply")
	w.wait("the selector leaves two", `!row("chosen-2") && text(".head").includes("2 objects")`)
	w.write("CEL expression", "object.data.n == '1'")
	w.press("Apply")
	w.wait("the expression leaves one", `!row("chosen-0") && row("chosen-1") && text(".head").includes("1 object")`)
	w.write("Namespace", "kube-system")
	w.press("Apply")
	w.wait("another namespace has none", `text(".vempty").includes("No object fits")`)
	w.press("Clear")
	w.wait("all are shown again", `row("chosen-2") && location.hash.endsWith("configmaps.v1")`)

	w.load(page("collections", "dev/pods.v1") + "?index=node&value=node-1")
	w.wait("the index chooses the pods of a node", `all(".vbody a").length > 0 && field("Index").value === "node"`)

	w.expected = []string{"400"}
	w.load(page("collections", "dev/configmaps.v1") + "?cel=object.(")
	w.wait("a wrong expression is explained", `text(".note.failing").length > 20 && text(".note.failing").includes("Change what is asked for")`)
}

func TestAnObjectIsShownAsItChanges(t *testing.T) {
	create(t, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"changes"},"data":{"step":"first"}}`)
	w := open(t, shared.up.console)
	w.load(page("collections", "dev/configmaps.v1", "default/changes"))
	w.wait("the object is shown", `text(".yaml").includes("step: first")`)
	patch(t, "/api/v1/namespaces/default/configmaps/changes", `{"data":{"step":"second"}}`)
	w.wait("the change is shown and marked", `text(".yaml .fresh").includes("step: second")`)
	w.click("the choice of managedFields", `field("managedFields")`)
	w.wait("managedFields are shown where there are some", `one("main input[type=checkbox]").checked`)
	if err := call(t.Context(), "DELETE", "/api/v1/namespaces/default/configmaps/changes", "application/json", ""); err != nil {
		t.Fatal(err)
	}
	w.wait("the deletion is said, and the last version stays", `text(".note").includes("was deleted") && text(".yaml").includes("step: second")`)
	w.load(page("collections", "dev/configmaps.v1", "default/absent"))
	w.wait("an object that is not there is said to be absent", `text(".note").includes("There is no such object")`)
}

func TestKeysAreFoundRetriedMovedAndDeleted(t *testing.T) {
	command(t, "queue", "configure", "acted/keys")
	var keys []string
	for i := range 30 {
		keys = append(keys, fmt.Sprintf("default/key-%02d", i))
	}
	command(t, append(append([]string{"queue", "add", "acted/keys"}, keys...), "--after", "2h")...)
	w := open(t, shared.up.console)
	w.load(page("queues", "acted/keys"))
	w.wait("the keys are shown", `row("default/key-00") && text(".tabs").includes("Delayed30")`)
	w.write("Find a key", "key-07")
	w.wait("a part of a key finds it", `all(".vbody [role=row]").length === 1 && row("default/key-07")`)
	w.click("its box", `row("default/key-07").querySelector("input")`)
	w.press("Retry now")
	w.wait("it is asked first", `text("dialog").includes("Retry now: default/key-07?") && one("dialog").contains(document.activeElement)`)
	w.press("Cancel")
	w.wait("nothing was done", `!one("dialog") && row("default/key-07").innerText.includes("delayed")`)
	w.press("Retry now")
	w.confirm("Retry now")
	w.wait("it says what came of it, and the key is ready", `text(".said").includes("default/key-07 waits now") && row("default/key-07").innerText.includes("ready")`)

	w.write("Find a key", "")
	w.press("Ready")
	w.wait("only ready keys are shown", `all(".vbody [role=row]").length === 1`)
	w.press("Delayed")
	w.wait("delayed keys are shown", `row("default/key-01")`)
	w.press("Select the 29 shown")
	w.press("Move to the front")
	w.confirm("Move to the front")
	w.wait("29 keys are in front", `text(".said").includes("done for 29 keys") && text(".tabs").includes("Ready30")`)

	w.press("All")
	w.click("a key", `row("default/key-03")?.querySelector("a")`)
	w.heading("default/key-03")
	w.wait("why it waits is said", `text(".causes").includes("no_worker") && text(".sentence").length > 20`)
	w.press("Delete")
	w.confirm("Delete")
	w.wait("it is gone, as the page says by itself", `text(".said").includes("was deleted") && text(".causes").includes("none")`)
}

func TestAQueueIsPausedClosedAndDeleted(t *testing.T) {
	command(t, "queue", "configure", "acted/queue")
	w := open(t, shared.up.console)
	w.load("queues")
	w.write("Name contains", "acted/queue")
	w.click("the queue", `row("acted/queue")?.querySelector("a")`)
	w.heading("acted/queue")
	w.press("Pause")
	w.confirm("Pause")
	w.wait("it says that the queue is paused", `text(".note").includes("The queue is paused") && button("Resume")`)
	w.press("Resume")
	w.confirm("Resume")
	w.wait("it hands out keys again", `!text(".note").includes("paused") && button("Pause")`)
	w.press("Close")
	w.confirm("Close")
	w.wait("it is closed", `button("Open")`)
	w.press("Delete queue")
	w.wait("the name has to be written first", `all("dialog button").find((e) => e.innerText === "Delete queue").disabled`)
	w.write("Type", "acted/queue")
	w.confirm("Delete queue")
	w.heading("Queues")
	if out := command(t, "queue", "ls"); strings.Contains(out, "acted/queue") {
		t.Errorf("the queue is still there:\n%s", out)
	}
}

func TestTheSearchFieldFindsKeyObjectQueueAndNode(t *testing.T) {
	views(t)
	w := open(t, shared.up.console)
	w.load("flow")
	w.wait("it is live", `one(".link.live")`)
	for _, find := range []struct{ text, kind, heading string }{
		{"default/waits", "key", "default/waits"},
		{"default/shown", "object", "default/shown"},
		{"shown/keys", "queue", "shown/keys"},
		{"configmaps", "collection", "dev/configmaps.v1"},
		{"node-2", "node", "Nodes"},
	} {
		w.search(find.text)
		w.wait(find.text+" is found", fmt.Sprintf(`all("#found li").some((e) => e.querySelector(".kind").innerText === %s && e.querySelector(".name").innerText.includes(%s))`, quote(find.kind), quote(find.text)))
		w.click(find.text, fmt.Sprintf(`all("#found li").find((e) => e.querySelector(".kind").innerText === %s && e.querySelector(".name").innerText.includes(%s))`, quote(find.kind), quote(find.text)))
		w.heading(find.heading)
	}
	w.wait("the node is chosen", `text(".details h2") === "node-2"`)
}

func TestATraceIsAWaterfall(t *testing.T) {
	w := open(t, shared.up.console)
	w.load("traces")
	w.wait("the page shows the store of traces", `one("[role=grid]")`)
	w.click("the first trace", `one(".vbody a")`)
	w.wait("its spans are drawn", `all(".waterfall .bar").length > 0 && location.hash.startsWith("#/traces/")`)
	w.click("a span", `one(".waterfall button")`)
	w.wait("the span says what it was", `text(".spandetail").includes("Takes")`)
	w.load("traces/00000000000000000000000000000bad")
	w.wait("a trace that is not kept is said to be gone", `text(".note").includes("does not have this trace")`)
}
