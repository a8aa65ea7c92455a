import type { ComponentChildren, VNode } from "preact";
import { Code } from "@connectrpc/connect";
import { Health, KeyState, type Silent } from "../../gen/deltaplane/console/v1/views_pb";
import type { News } from "../session";
import { askForToken, link, signedIn } from "../session";
import { clock } from "../format";

export type Tone = "well" | "warning" | "failing" | "quiet" | "busy";

/** A word with a colour. The word says all of it, so that nobody needs the colour. */
export function Badge({ tone, children }: { tone: Tone; children: ComponentChildren }): VNode {
  return <span class={"badge " + tone}>{children}</span>;
}

export function toneOf(h: Health): Tone {
  return h === Health.WELL ? "well" : h === Health.WARNING ? "warning" : h === Health.FAILING ? "failing" : "quiet";
}

const states: Record<KeyState, [string, Tone]> = {
  [KeyState.UNSPECIFIED]: ["unknown", "quiet"],
  [KeyState.IDLE]: ["not queued", "quiet"],
  [KeyState.READY]: ["ready", "busy"],
  [KeyState.DELAYED]: ["delayed", "warning"],
  [KeyState.PROCESSING]: ["leased", "well"],
  [KeyState.DIRTY]: ["leased, dirty", "well"],
  [KeyState.DEAD]: ["dead", "failing"],
};

export function StateBadge({ state }: { state: KeyState }): VNode {
  const [text, tone] = states[state] ?? states[KeyState.UNSPECIFIED];
  return <Badge tone={tone}>{text}</Badge>;
}

/** Names with values, as a description list. Those without a value are left out. */
export function Facts({ of }: { of: [string, ComponentChildren][] }): VNode {
  return (
    <dl class="facts">
      {of.filter(([, v]) => v !== undefined && v !== "" && v !== null && v !== false).map(([name, v]) => (
        <div key={name}><dt>{name}</dt><dd>{v}</dd></div>
      ))}
    </dl>
  );
}

/** The head of a page: what it is, what one can do, and what it is about. */
export function Head({ title, over, children }: { title: ComponentChildren; over?: ComponentChildren; children?: ComponentChildren }): VNode {
  return (
    <header class="head">
      <div class="headline">
        {over && <p class="over">{over}</p>}
        <h1 tabIndex={-1}>{title}</h1>
      </div>
      {children && <div class="actions">{children}</div>}
    </header>
  );
}

const help: Partial<Record<Code, string>> = {
  [Code.PermissionDenied]: "Ask for the right to see it, or sign in with a token that has it.",
  [Code.NotFound]: "Check the name. The search field finds what there is.",
  [Code.InvalidArgument]: "Change what is asked for.",
  [Code.Unavailable]: "Check that the service runs and that the console reaches it.",
  [Code.DeadlineExceeded]: "The service is slow. Check its load.",
  [Code.ResourceExhausted]: "Close other tabs of the console, or wait.",
  [Code.Unimplemented]: "The service is older than the console. Upgrade it.",
  [Code.FailedPrecondition]: "Look at its state first; it has to change before this can work.",
};

/** Why a view cannot be shown, what helps, and of when what is shown is. */
export function Fault({ failure, at }: { failure: News["failure"]; at?: number | undefined }): VNode | null {
  if (!failure) return null;
  const denied = (failure.code as Code) === Code.PermissionDenied;
  return (
    <div class="note failing" role="alert">
      <p>
        <strong>{sentence(failure.message || "The server gave no reason.")}</strong> {help[failure.code as Code] ?? ""}
        {denied && <> <button type="button" onClick={() => askForToken("")}>Sign in{signedIn() ? " with another token" : ""}</button></>}
      </p>
      <p class="quiet">
        {failure.retrying ? "It is tried again by itself." : ""}
        {at ? ` What is shown was known at ${clock(at)}.` : ""}
        {failure.reason ? ` (${failure.reason})` : ""}
      </p>
    </div>
  );
}

/** Parts that did not answer. */
export function Silence({ of }: { of: readonly Silent[] }): VNode | null {
  if (of.length === 0) return null;
  return (
    <div class="note warning" role="status">
      {of.map((s) => <p key={s.part}><strong>{s.part}:</strong> {s.why}. The rest is shown without it.</p>)}
    </div>
  );
}

/** What a page shows before anything came. */
export function Waiting({ what }: { what: string }): VNode {
  return <p class="quiet pad" role="status">{link.value.is === "live" ? `Reading ${what}…` : `Not connected: ${what} will be read then.`}</p>;
}

export function sentence(text: string): string {
  const s = text.trim();
  return s.charAt(0).toUpperCase() + s.slice(1) + (/[.!?]$/.test(s) ? "" : ".");
}

export { KeyState, Health };
