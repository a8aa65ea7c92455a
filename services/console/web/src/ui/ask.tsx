import { signal } from "@preact/signals";
import type { VNode } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { ConnectError } from "@connectrpc/connect";
import { sentence } from "./bits";

interface Question {
  title: string;
  text: string;
  verb: string;
  danger?: boolean;
  /** What has to be typed first, for what cannot be undone. */
  type?: string;
  /** Does it, and says what came of it. */
  act: () => Promise<string>;
}

const question = signal<Question | undefined>(undefined);
const said = signal<{ text: string; bad: boolean } | undefined>(undefined);

export function ask(q: Question): void {
  question.value = q;
}

/** Says what came of something, in words that stay until the next or until they are closed. */
export function say(text: string, bad = false): void {
  said.value = { text, bad };
}

/** The dialog in which an operator confirms, which keeps the focus until it is closed. */
export function Dialog(): VNode | null {
  const q = question.value;
  const box = useRef<HTMLDialogElement>(null);
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  useLayoutEffect(() => {
    setTyped(""); setError(""); setBusy(false);
    if (q && box.current && !box.current.open) box.current.showModal();
  }, [q]);
  if (!q) return null;
  const close = () => { box.current?.close(); question.value = undefined; };
  const act = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setError("");
    try {
      say(await q.act());
      close();
    } catch (e) {
      setError(sentence(ConnectError.from(e).rawMessage));
      setBusy(false);
    }
  };
  const held = q.type !== undefined && typed !== q.type;
  return (
    <dialog ref={box} aria-labelledby="ask-title" aria-describedby="ask-text" onCancel={(e) => { e.preventDefault(); close(); }}>
      <form onSubmit={act}>
        <h2 id="ask-title">{q.title}</h2>
        <p id="ask-text">{q.text}</p>
        {q.type !== undefined && (
          <label class="field">Type <code>{q.type}</code> to confirm
            <input type="text" value={typed} autocomplete="off" spellcheck={false} onInput={(e) => setTyped(e.currentTarget.value)} />
          </label>
        )}
        {error && <p class="note failing" role="alert">{error} Nothing else was done. Try again, or cancel.</p>}
        <div class="actions">
          <button type="button" onClick={close}>Cancel</button>
          <button type="submit" class={q.danger ? "danger" : "primary"} disabled={busy || held}>{busy ? "Working…" : q.verb}</button>
        </div>
      </form>
    </dialog>
  );
}

/** What was last said. */
export function Said(): VNode {
  const s = said.value;
  return (
    <div class="said" role="status" aria-live="polite">
      {s && <p class={s.bad ? "bad" : ""}>{s.text} <button type="button" class="plain" onClick={() => { said.value = undefined; }}>Close</button></p>}
    </div>
  );
}
