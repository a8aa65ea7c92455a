import { useEffect, useMemo, useState } from "preact/hooks";
import { timestampMs, durationMs, type Timestamp, type Duration } from "@bufbuild/protobuf/wkt";
import { Watching, type Content, type News, type View } from "./session";

type Case = NonNullable<Content["case"]>;
type ValueOf<C extends Case> = Extract<Content, { case: C }>["value"];

/** What a page shows of a view. */
export interface Seen<C extends Case> {
  value?: ValueOf<C>;
  at?: number;
  failure?: News["failure"];
}

// The last state of each view, so that a page that is opened again shows it at once.
const remembered = new Map<string, News>();
const mostRemembered = 50;

/** Subscribes for as long as the component is there. A changed name means another view. */
export function useView<C extends Case>(want: C, name: string, view: View): Seen<C> {
  const [news, setNews] = useState<{ name: string; news: News }>({ name, news: remembered.get(name) ?? {} });
  useEffect(() => {
    setNews({ name, news: remembered.get(name) ?? {} });
    const watching = new Watching(view, (news) => {
      setNews((old) => {
        const next = news.content ? news : { ...(old.name === name ? old.news : {}), ...news };
        if (news.content) {
          remembered.delete(name);
          remembered.set(name, news);
          if (remembered.size > mostRemembered) remembered.delete(remembered.keys().next().value!);
        }
        return { name, news: next };
      });
    });
    return () => watching.end();
  }, [name]);
  return useMemo(() => {
    const t = news.name === name ? news.news : remembered.get(name) ?? {};
    const seen: Seen<C> = {};
    if (t.content?.case === want) seen.value = t.content.value as ValueOf<C>;
    if (t.at !== undefined) seen.at = t.at;
    if (t.failure) seen.failure = t.failure;
    return seen;
  }, [news, name]);
}

/** The current time, again every so many milliseconds. */
export function useNow(every = 1000): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}

export function useTitle(title: string): void {
  useEffect(() => { document.title = title ? title + " · Deltaplane" : "Deltaplane"; }, [title]);
}

export function ms(t: Timestamp | undefined): number | undefined {
  return t && timestampMs(t);
}

export function seconds(d: Duration | undefined): number | undefined {
  return d && durationMs(d) / 1000;
}
