import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { FoundKind, type Found, type SearchResponse } from "../../gen/deltaplane/console/v1/console_pb";
import { client, failureOf } from "../session";
import { go, toCollection, toKey, toNode, toObject, toQueue } from "../route";

const words: Record<FoundKind, string> = {
  [FoundKind.UNSPECIFIED]: "",
  [FoundKind.COLLECTION]: "collection",
  [FoundKind.OBJECT]: "object",
  [FoundKind.QUEUE]: "queue",
  [FoundKind.KEY]: "key",
  [FoundKind.NODE]: "node",
};

function address(f: Found): string {
  switch (f.kind) {
    case FoundKind.COLLECTION: return toCollection(f.collection);
    case FoundKind.OBJECT: return toObject(f.collection, f.key);
    case FoundKind.QUEUE: return toQueue(f.queue);
    case FoundKind.KEY: return toKey(f.queue, f.key);
    case FoundKind.NODE: return toNode(f.key);
  }
  return "#/";
}

/** The one search field: / and Ctrl-K lead to it from everywhere. */
export function Search(): VNode {
  const input = useRef<HTMLInputElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const [text, setText] = useState("");
  const [open, setOpen] = useState(false);
  const [answer, setAnswer] = useState<{ to: string; is?: SearchResponse; error?: string }>();
  const [active, setActive] = useState(0);

  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      const typing = (e.target as Element).closest("input,textarea,select,dialog");
      if ((e.key === "/" && !typing && !e.ctrlKey && !e.metaKey && !e.altKey) || (e.key === "k" && (e.ctrlKey || e.metaKey))) {
        e.preventDefault();
        input.current?.focus();
        input.current?.select();
      }
    };
    const away = (e: FocusEvent | MouseEvent) => { if (!box.current?.contains(e.target as Node)) setOpen(false); };
    addEventListener("keydown", key);
    addEventListener("mousedown", away);
    addEventListener("focusin", away);
    return () => { removeEventListener("keydown", key); removeEventListener("mousedown", away); removeEventListener("focusin", away); };
  }, []);

  const wanted = text.trim();
  useEffect(() => {
    if (!wanted) { setAnswer(undefined); return; }
    const stop = new AbortController();
    // People type on: what they meant after a moment is asked for, and an older answer is dropped.
    const timer = setTimeout(() => {
      client.search({ text: wanted }, { signal: stop.signal })
        .then((is) => { setAnswer({ to: wanted, is }); setActive(0); })
        .catch((e: unknown) => { if (!stop.signal.aborted) setAnswer({ to: wanted, error: failureOf(e).message }); });
    }, 120);
    return () => { clearTimeout(timer); stop.abort(); };
  }, [wanted]);

  const found = answer?.is?.found ?? [];
  const shown = open && wanted !== "";
  const choose = (f: Found | undefined) => {
    if (!f) return;
    setOpen(false);
    setText("");
    input.current?.blur();
    go(address(f));
  };
  const key = (e: KeyboardEvent) => {
    if (e.key === "ArrowDown") { e.preventDefault(); setActive((a) => Math.min(found.length - 1, a + 1)); }
    else if (e.key === "ArrowUp") { e.preventDefault(); setActive((a) => Math.max(0, a - 1)); }
    else if (e.key === "Enter") { e.preventDefault(); if (answer?.to === wanted) choose(found[active]); }
    else if (e.key === "Escape") { if (shown) setOpen(false); else input.current?.blur(); }
  };
  const note = answer?.error ? `The search failed: ${answer.error}`
    : answer?.to !== wanted ? "Searching…"
    : found.length === 0 ? "Nothing was found. Objects and keys are found by their whole keys, such as default/hello." : "";
  return (
    <div class="search" role="search" ref={box}>
      <input
        ref={input} type="text" role="combobox" aria-label="Search key, object, queue or node" aria-expanded={shown} aria-controls="found"
        aria-autocomplete="list" placeholder="Search key, object, queue, node" autocomplete="off" spellcheck={false} value={text} maxLength={256}
        {...(shown && found[active] ? { "aria-activedescendant": `found-${active}` } : {})}
        onInput={(e) => { setText(e.currentTarget.value); setOpen(true); }} onFocus={() => setOpen(true)} onKeyDown={key}
      />
      <kbd aria-hidden="true">/</kbd>
      <div class="found" hidden={!shown}>
        <ul id="found" role="listbox" aria-label="Found" hidden={found.length === 0}>
          {found.map((f, i) => (
            <li
              key={i} id={`found-${i}`} role="option" aria-selected={i === active} class={i === active ? "active" : ""}
              onMouseDown={(e) => { e.preventDefault(); choose(f); }} onMouseMove={() => setActive(i)}
            >
              <span class="kind">{words[f.kind]}</span>
              <span class="name">{f.key || f.queue || f.collection}</span>
              <span class="where">{[f.key && (f.queue || f.collection), f.detail].filter(Boolean).join(", ")}</span>
            </li>
          ))}
        </ul>
        {note && <p class="quiet" role="status">{note}</p>}
        {answer?.is?.more && answer.to === wanted && <p class="quiet">More than these {found.length} were found. Write more of the name.</p>}
        {answer?.is?.silent.map((s) => <p key={s.part} class="quiet">Not searched: {s.part}, {s.why}.</p>)}
      </div>
    </div>
  );
}
