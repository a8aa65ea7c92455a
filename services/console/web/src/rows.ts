import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Column, Row, Rows } from "../gen/deltaplane/console/v1/views_pb";
import { opened, Watching, type News } from "./session";

/** Which objects of a collection. */
export interface Choice {
  collection: string;
  text: string;
  namespace: string;
  labelSelector: string;
  index: string;
  indexValue: string;
  cel: string;
}

/** A range of a collection as it has arrived, and what the server says of the whole. */
export interface Range {
  known: boolean;
  columns: Column[];
  indexes: string[];
  total: number;
  offset: number;
  keys: string[];
  rows: Map<string, Row>;
  revision: string;
  state: string;
  failed: number;
  at?: number;
  failure?: News["failure"];
}

const nothing: Range = {
  known: false, columns: [], indexes: [], total: 0, offset: 0, keys: [], rows: new Map(), revision: "", state: "", failed: 0,
};

/** Applies an update: rows stay the same objects unless they changed, so that only changed ones are drawn again. */
export function apply(old: Range, update: Rows, at: number): Range {
  const keys = update.keysChanged ? update.keys : old.keys;
  const rows = new Map<string, Row>();
  const fresh = new Map(update.rows.map((r) => [r.key, r]));
  for (const key of keys) {
    const row = fresh.get(key) ?? old.rows.get(key);
    if (row) rows.set(key, row);
  }
  return {
    known: true, keys, rows, at,
    columns: update.columns.length > 0 ? update.columns : old.columns,
    indexes: update.indexes.length > 0 ? update.indexes : old.indexes,
    total: update.total, offset: update.offset, revision: update.revision, state: update.state, failed: update.failed,
  };
}

/** The rows of a collection around those in view. `look` says which are in view. */
export function useRows(choice: Choice): { range: Range; look: (first: number, count: number) => void } {
  const name = JSON.stringify(choice);
  const [range, setRange] = useState<{ name: string; is: Range }>({ name, is: nothing });
  const watching = useRef<Watching | undefined>(undefined);
  const asked = useRef({ offset: 0, limit: 100 });

  useEffect(() => {
    asked.current = { offset: 0, limit: 100 };
    const w = new Watching({ case: "collection", value: { ...choice, ...asked.current } }, (news) => {
      setRange((old) => {
        // What was chosen before is shown until what is chosen now has arrived.
        const base = old.name === name ? old.is : { ...nothing, columns: old.is.columns, indexes: old.is.indexes };
        if (news.content?.case === "rows") return { name, is: apply(base, news.content.value, news.at ?? 0) };
        return { name, is: { ...base, failure: news.failure } as Range };
      });
    });
    watching.current = w;
    return () => { w.end(); watching.current = undefined; };
  }, [name]);

  const look = useMemo(() => (first: number, count: number) => {
    const now = asked.current;
    const most = opened.value?.maxRows || 200;
    // Another range only when what is in view leaves the one there is.
    if (first >= now.offset && first + count <= now.offset + now.limit) return;
    const limit = Math.min(most, Math.max(100, count * 3));
    const offset = Math.max(0, first - Math.floor((limit - count) / 2));
    asked.current = { offset, limit };
    watching.current?.replace({ case: "collection", value: { ...choice, ...asked.current } });
  }, [name]);

  return { range: range.name === name ? range.is : { ...range.is, failure: undefined } as Range, look };
}
