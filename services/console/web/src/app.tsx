import type { VNode } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { place, to } from "./route";
import { link, opened, retry, signedIn, signOut } from "./session";
import { clock } from "./format";
import { useNow } from "./view";
import { Dialog, Said } from "./ui/ask";
import { Search } from "./ui/search";
import { SignIn } from "./pages/signin";
import { FlowPage } from "./pages/flow";
import { CollectionsPage } from "./pages/collections";
import { CollectionPage } from "./pages/collection";
import { ObjectPage } from "./pages/object";
import { QueuesPage } from "./pages/queues";
import { QueuePage } from "./pages/queue";
import { KeyPage } from "./pages/key";
import { NodesPage } from "./pages/nodes";
import { TracesPage } from "./pages/traces";
import { TracePage } from "./pages/trace";
import { Head } from "./ui/bits";

const sections = [["flow", "Flow"], ["collections", "Collections"], ["queues", "Queues"], ["nodes", "Nodes"], ["traces", "Traces"]] as const;

function Page(): VNode {
  const [section = "flow", a, b] = place.value.parts;
  switch (section) {
    case "flow": return <FlowPage />;
    case "collections":
      if (a && b) return <ObjectPage key={a + "\n" + b} collection={a} name={b} />;
      return a ? <CollectionPage key={a} collection={a} /> : <CollectionsPage />;
    case "queues":
      if (a && b) return <KeyPage key={a + "\n" + b} queue={a} name={b} />;
      return a ? <QueuePage key={a} queue={a} /> : <QueuesPage />;
    case "nodes": return <NodesPage />;
    case "traces": return a ? <TracePage key={a} id={a} /> : <TracesPage />;
  }
  return <><Head title="There is no such page" /><p class="pad">The address is mistyped, or of another version. <a href={to(["flow"])}>Go to the flow</a>.</p></>;
}

/** What an operator has to know about the connection: nothing, while it is well. */
function LinkState(): VNode {
  const l = link.value;
  const user = opened.value?.user;
  const text = { connecting: "Connecting", live: "Live", lost: "Disconnected", "signed-out": "Signed out" }[l.is];
  return (
    <p class={"link " + l.is} role="status">
      <span class="dot" aria-hidden="true" />{text}
      {l.is === "live" && user && <span class="user" title="The user that the index knows you as"> {user}</span>}
      {signedIn() && <button type="button" class="plain" onClick={signOut}>Sign out</button>}
    </p>
  );
}

function Lost(): VNode | null {
  const l = link.value;
  const now = useNow(1000);
  if (l.is !== "lost") return null;
  return (
    <div class="banner" role="alert">
      <p>
        <strong>Disconnected since {clock(l.since)}.</strong> What is shown was known at {clock(l.known)}. <span class="quiet">{l.why}</span>
      </p>
      <p class="actions">
        <span class="quiet" aria-hidden="true">{l.again > now ? `Next attempt in ${Math.ceil((l.again - now) / 1000)} s` : "Connecting…"}</span>
        <button type="button" onClick={retry}>Connect now</button>
      </p>
    </div>
  );
}

export function App(): VNode {
  const { parts } = place.value;
  const section = parts[0] ?? "flow";
  const address = parts.join("\n");
  const first = useRef(true);
  // A new page begins at its heading, for those who cannot see that everything changed. At once: what
  // somebody goes to meanwhile, by / for one, keeps the focus.
  useLayoutEffect(() => {
    if (first.current) { first.current = false; return; }
    scrollTo(0, 0);
    document.querySelector<HTMLElement>("main h1")?.focus({ preventScroll: true });
  }, [address]);
  const out = link.value.is === "signed-out";
  return (
    <>
      <button type="button" class="skip" onClick={() => document.getElementById("main")?.focus()}>Skip to the page</button>
      <header class="top">
        <a class="brand" href={to(["flow"])}><svg width="16" height="16" viewBox="0 0 32 32" aria-hidden="true"><path d="M3 25 16 6l13 19-13-6z" fill="currentColor" /></svg>Deltaplane</a>
        <nav aria-label="Pages">
          {sections.map(([path, name]) => (
            <a key={path} href={to([path])} {...(path === section ? { "aria-current": parts.length > 1 ? "true" as const : "page" as const } : {})}>{name}</a>
          ))}
        </nav>
        {!out && <Search />}
        <LinkState />
      </header>
      <Lost />
      <main id="main" tabIndex={-1}>{out ? <SignIn /> : <Page />}</main>
      <Said />
      <Dialog />
    </>
  );
}
