import { computed, signal } from "@preact/signals";

/** Where the console is: the parts of the path behind the hash, and what follows the question mark. */
export interface Place {
  parts: string[];
  query: URLSearchParams;
}

const hash = signal(location.hash);
addEventListener("hashchange", () => { hash.value = location.hash; });

function parse(text: string): Place {
  const [path = "", query = ""] = text.replace(/^#\/?/, "").split("?", 2);
  const parts: string[] = [];
  for (const part of path.split("/")) {
    if (part === "") continue;
    // A link that somebody mangled leads to a page that says so, not to an exception.
    try { parts.push(decodeURIComponent(part)); } catch { parts.push(part); }
  }
  return { parts, query: new URLSearchParams(query) };
}

export const place = computed(() => parse(hash.value));

/** The address of a page. Each part is escaped, so that keys may contain slashes. */
export function to(parts: string[], query?: Record<string, string | undefined>): string {
  const q = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) if (value) q.set(name, value);
  const text = q.toString();
  return "#/" + parts.map(encodeURIComponent).join("/") + (text ? "?" + text : "");
}

export function go(address: string): void {
  location.hash = address;
}

/** Changes what follows the question mark without a new entry in the browser's history. */
export function refine(query: Record<string, string | undefined>): void {
  history.replaceState(null, "", to(place.value.parts, query));
  hash.value = location.hash;
}

export const toQueue = (queue: string, query?: Record<string, string | undefined>) => to(["queues", queue], query);
export const toKey = (queue: string, key: string) => to(["queues", queue, key]);
export const toCollection = (collection: string, query?: Record<string, string | undefined>) => to(["collections", collection], query);
export const toObject = (collection: string, key: string) => to(["collections", collection, key]);
export const toNode = (name: string) => to(["nodes"], { node: name });
export const toTrace = (id: string) => to(["traces", id]);
