import { Code, ConnectError, createClient, type Client, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { signal } from "@preact/signals";
import { ConsoleService, type Failure, type Opened, type OpenResponse, type SubscribeRequestSchema } from "../gen/deltaplane/console/v1/console_pb";

export type View = NonNullable<MessageInitShape<typeof SubscribeRequestSchema>["view"]>;
export type Content = OpenResponse["content"];

/** How the connection to the console's server is. */
export type Link =
  | { is: "connecting" }
  | { is: "live" }
  | { is: "lost"; since: number; known: number; why: string; again: number }
  | { is: "signed-out"; why: string };

/** How a view is shown: what came last, and why nothing newer comes. */
export interface News {
  content?: Content;
  at?: number;
  failure?: Failure | undefined;
}

/** What the server knows one stream as. The signal ends the calls for it with the stream. */
interface Session {
  id: string;
  signal: AbortSignal;
}

const tokenName = "deltaplane.token";

/** The server says something at least every 5 s; after this long the connection counts as lost. */
const silence = 25_000;
const firstWait = 500;
const longestWait = 15_000;
/** How long a call may take: more than the server takes for one, which is 10 s. */
const callWithin = 15_000;

export const link = signal<Link>({ is: "connecting" });
export const opened = signal<Opened | undefined>(undefined);

const bearer: Interceptor = (next) => (request) => {
  const token = sessionStorage.getItem(tokenName);
  if (token) request.header.set("Authorization", "Bearer " + token);
  return next(request);
};

const transport = createConnectTransport({
  baseUrl: new URL(".", location.href.split("#")[0]).href.replace(/\/$/, ""),
  useBinaryFormat: true,
  interceptors: [bearer],
});

export const client: Client<typeof ConsoleService> = createClient(ConsoleService, transport);

const subscriptions = new Map<number, Watching>();
let number = 0;
let session: Session | undefined;
let wake: (() => void) | undefined;
let stop = new AbortController();
// When the connection last said something, and when a message last came.
let heard = Date.now();
let known = Date.now();

export function signedIn(): boolean {
  return sessionStorage.getItem(tokenName) !== null;
}

/** Keeps the token until the tab is closed, and connects with it. */
export function signIn(token: string): void {
  sessionStorage.setItem(tokenName, token);
  link.value = { is: "connecting" };
  stop.abort();
  wake?.();
}

/** Leads to the page on which a token is given. */
export function askForToken(why: string): void {
  link.value = { is: "signed-out", why };
  stop.abort();
}

export function signOut(): void {
  sessionStorage.removeItem(tokenName);
  location.reload();
}

/** Connects now instead of when the wait is over. */
export function retry(): void {
  wake?.();
}

/** A view that is kept over reconnects until it is ended. The server gets its calls one after another. */
export class Watching {
  readonly #number = ++number;
  readonly #notify: (news: News) => void;
  #view: View | undefined;
  #calls = Promise.resolve();
  // Whether a call has yet to begin. It asks for what is wanted by then.
  #due = false;
  #again: ReturnType<typeof setTimeout> | undefined;
  #wait = firstWait;
  // Whether what is shown last is that a call failed.
  #failed = false;

  constructor(view: View, notify: (news: News) => void) {
    this.#view = view;
    this.#notify = notify;
    subscriptions.set(this.#number, this);
    this.ask();
  }

  /** Asks for something else under the same number: another range of the same rows. */
  replace(view: View): void {
    if (!this.#view) return;
    this.#view = view;
    this.ask();
  }

  end(): void {
    this.#view = undefined;
    subscriptions.delete(this.#number);
    this.ask();
  }

  /** Shows what the stream says of the view. */
  show(news: News): void {
    this.#failed = false;
    this.#notify(news);
  }

  /** Has the server know what is wanted. Without a session nothing is asked: the next one asks again. */
  ask(): void {
    if (this.#due) return;
    this.#due = true;
    this.#calls = this.#calls.then(() => this.#call());
  }

  async #call(): Promise<void> {
    this.#due = false;
    clearTimeout(this.#again);
    const at = session;
    const view = this.#view;
    if (!at) return;
    const named = { session: at.id, subscription: this.#number };
    const options = { signal: at.signal, timeoutMs: callWithin };
    try {
      await (view ? client.subscribe({ ...named, view }, options) : client.unsubscribe(named, options));
    } catch (e) {
      if (session === at && !at.signal.aborted) this.#fail(ConnectError.from(e), view);
      return;
    }
    this.#wait = firstWait;
    if (this.#failed && this.#view) this.show({ failure: undefined });
  }

  #fail(error: ConnectError, view: View | undefined): void {
    if (error.code === Code.Unauthenticated) { askForToken(error.rawMessage); return; }
    const retrying = passes(error);
    if (retrying) {
      this.#again = setTimeout(() => this.ask(), this.#wait);
      this.#wait = Math.min(longestWait, this.#wait * 2);
    }
    if (!view || view !== this.#view) return;
    this.#failed = true;
    this.#notify({ failure: { ...failureOf(error), retrying } });
  }
}

/** Whether the same call may succeed later. A browser that reached no server says TypeError. */
function passes(error: ConnectError): boolean {
  return error.code === Code.Unavailable || error.code === Code.DeadlineExceeded || error.code === Code.ResourceExhausted
    || error.cause instanceof TypeError;
}

/** An error of a call in the form in which the stream says why a view fails. */
export function failureOf(e: unknown): Failure {
  const error = ConnectError.from(e);
  return { $typeName: "deltaplane.console.v1.Failure", code: error.code, reason: "", message: error.rawMessage, retrying: false };
}

function receive(message: OpenResponse): void {
  heard = known = Date.now();
  const { content, subscription } = message;
  if (content.case === "opened") {
    opened.value = content.value;
    session = { id: content.value.session, signal: stop.signal };
    link.value = { is: "live" };
    for (const w of subscriptions.values()) w.ask();
    return;
  }
  const w = subscriptions.get(subscription);
  if (!w || content.case === "heartbeat") return;
  if (content.case === "failure") {
    if ((content.value.code as Code) === Code.Unauthenticated) askForToken(content.value.message);
    w.show({ failure: content.value });
    return;
  }
  w.show({ content, at: heard });
}

// A browser opens six connections to a server without TLS, for all its tabs together. A page that
// nobody sees gives its own back, and is up to date again a moment after somebody looks.
const hiddenFor = 5_000;
let resting = false;
let hiding: ReturnType<typeof setTimeout> | undefined;

function rest(): void {
  resting = true;
  stop.abort();
}

function look(): void {
  clearTimeout(hiding);
  if (document.hidden) {
    hiding = setTimeout(rest, hiddenFor);
  } else if (resting) {
    resting = false;
    wake?.();
  }
}

look(); // a tab that is opened in the background gets no event for that
document.addEventListener("visibilitychange", look);
addEventListener("pagehide", rest);
addEventListener("pageshow", look);

/** Waits, or until `wake` is called. */
function pause(ms = 2 ** 30): Promise<void> {
  return new Promise((done) => {
    const timer = setTimeout(end, ms);
    function end() { clearTimeout(timer); wake = undefined; done(); }
    wake = end;
  });
}

/** Holds the one stream of this tab, and opens it again whenever it ends. */
export async function connect(): Promise<never> {
  let wait = firstWait;
  let since = 0;
  for (;;) {
    if (link.value.is === "signed-out") {
      await pause();
      continue;
    }
    if (resting) {
      link.value = { is: "connecting" };
      await pause();
      continue;
    }
    stop.abort(); // a call for the last session holds up those for the next
    stop = new AbortController();
    let silent = false;
    const guard = setInterval(() => { if (Date.now() - heard > silence) { silent = true; stop.abort(); } }, 1000);
    let why = "the server ended the connection";
    heard = Date.now();
    try {
      for await (const message of client.open({}, { signal: stop.signal })) {
        receive(message);
        wait = firstWait;
        since = 0;
      }
    } catch (e) {
      const error = ConnectError.from(e);
      if (error.code === Code.Unauthenticated) askForToken(error.rawMessage);
      why = silent ? "the server said nothing for 25 s" : error.rawMessage;
    }
    clearInterval(guard);
    session = undefined;
    // Somebody signed in or has to, or nobody sees the page.
    if (stop.signal.aborted && !silent) continue;
    since ||= Date.now();
    // A random part keeps the tabs of many people from returning at the same moment.
    const rest = wait * (0.75 + Math.random() / 2);
    link.value = { is: "lost", since, known, why, again: Date.now() + rest };
    await pause(rest);
    wait = Math.min(longestWait, wait * 2);
  }
}
