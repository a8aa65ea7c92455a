import type { VNode } from "preact";
import { useMemo, useState } from "preact/hooks";
import { Badge, Fault, Head } from "../ui/bits";
import { VirtualList, type Column } from "../ui/virtual";
import { useRows, type Choice, type Range } from "../rows";
import { useNow, useTitle } from "../view";
import { age, count, plural } from "../format";
import { go, place, refine, to, toObject } from "../route";
import type { Row } from "../../gen/deltaplane/console/v1/views_pb";

const fields = ["text", "namespace", "selector", "index", "value", "cel"] as const;
type Field = (typeof fields)[number];

function read(query: URLSearchParams): Record<Field, string> {
  return Object.fromEntries(fields.map((f) => [f, query.get(f) ?? ""])) as Record<Field, string>;
}

function since(cell: string, now: number): string {
  const t = Date.parse(cell);
  return Number.isNaN(t) ? cell : age((now - t) / 1000);
}

/** Columns as the server names them, as wide as what stands in them. */
function columnsOf(range: Range, collection: string, now: number): Column<Row>[] {
  const namespaced = range.keys.some((k) => k.includes("/"));
  const widths = range.columns.map((c, i) => {
    let most = c.name.length;
    for (const r of range.rows.values()) most = Math.max(most, c.age ? 7 : (r.cells[i]?.length ?? 0));
    return Math.min(44, most + 2);
  });
  const out: Column<Row>[] = [];
  if (namespaced) {
    out.push({ name: "Namespace", width: "minmax(9ch, 14ch)", rank: 2, cell: (r) => r.key.slice(0, r.key.indexOf("/")) });
  }
  range.columns.forEach((c, i) => {
    const rank = i === 0 ? 1 : c.age ? 2 : i <= 2 ? (i === 1 ? 1 : 2) : 3;
    out.push({
      name: c.name, rank, width: i === 0 ? `minmax(14ch, ${Math.max(20, widths[i]!)}fr)` : `minmax(${Math.min(8, widths[i]!)}ch, ${widths[i]}fr)`,
      cell: (r) => {
        if (i === 0) {
          const cut = r.key.indexOf("/") + 1;
          return <><span class="prefix">{r.key.slice(0, cut)}</span><a href={toObject(collection, r.key)} tabIndex={-1}>{r.key.slice(cut)}</a>{r.deleting && <span class="quiet"> being deleted</span>}{r.fault && <Badge tone="failing">{r.fault}</Badge>}</>;
        }
        const cell = r.cells[i] ?? "";
        return c.age ? since(cell, now) : cell;
      },
    });
  });
  return out;
}

export function CollectionPage({ collection }: { collection: string }): VNode {
  useTitle(collection);
  const asked = read(place.value.query);
  const [draft, setDraft] = useState<Record<Field, string>>(asked);
  const [more, setMore] = useState(Boolean(asked.cel || asked.index || asked.namespace || asked.selector));
  const choice: Choice = {
    collection, text: asked.text, namespace: asked.namespace, labelSelector: asked.selector, index: asked.value ? asked.index : "", indexValue: asked.value, cel: asked.cel,
  };
  const { range, look } = useRows(choice);
  const now = useNow(10_000);
  const shape = range.columns.map((c) => c.name).join() + range.known + range.keys.some((k) => k.includes("/"));
  const columns = useMemo(() => columnsOf(range, collection, now), [shape, collection, now]);
  const set = (name: Field, value: string) => setDraft((d) => ({ ...d, [name]: value }));
  const submit = (e: Event) => { e.preventDefault(); refine(draft); };
  const input = (name: Field, label: string, placeholder: string, wide = false) => (
    <label class={"field" + (wide ? " wide" : "")}>{label}
      <input type="text" name={name} value={draft[name]} placeholder={placeholder} autocomplete="off" spellcheck={false} onInput={(e) => set(name, e.currentTarget.value)} />
    </label>
  );
  return (
    <>
      <Head title={collection} over={<a href={to(["collections"])}>Collections</a>}>
        <p class="quiet">
          {range.known && <><strong>{plural(range.total, "object")}</strong>{range.revision && <> at revision <code>{range.revision}</code></>}{range.state && range.state !== "serving" && <> <Badge tone="warning">{range.state}</Badge></>}</>}
        </p>
      </Head>
      <Fault failure={range.failure} at={range.at} />
      <form class="filters" onSubmit={submit} aria-label="Choose objects">
        {input("text", "Key contains", "default/hello")}
        {more && <>
          {input("namespace", "Namespace", "default")}
          {input("selector", "Label selector", "app=web,tier!=cache")}
          <label class="field">Index
            <select name="index" value={draft.index} onChange={(e) => set("index", e.currentTarget.value)}>
              <option value="">none</option>
              {[...new Set([...range.indexes, ...(draft.index ? [draft.index] : [])])].map((i) => <option key={i} value={i}>{i}</option>)}
            </select>
          </label>
          {draft.index && input("value", "Value of the index", "")}
          {input("cel", "CEL expression", "object.status.phase == 'Running'", true)}
        </>}
        <div class="actions">
          <button type="submit" class="primary">Apply</button>
          <button type="button" onClick={() => { const none = read(new URLSearchParams()); setDraft(none); refine(none); }}>Clear</button>
          <button type="button" class="plain" aria-expanded={more} onClick={() => setMore(!more)}>{more ? "Fewer conditions" : "More conditions"}</button>
        </div>
      </form>
      {range.failed > 0 && <p class="note warning" role="status">{plural(range.failed, "object")} could not be shown, or the expression fails on {range.failed === 1 ? "it" : "them"}.</p>}
      {(range.known || !range.failure) && (
        <VirtualList
          label={`Objects of ${collection}`} columns={columns.length > 0 ? columns : waiting} total={range.total} onRange={look}
          at={(i) => { const key = range.keys[i - range.offset]; return key === undefined ? undefined : range.rows.get(key); }}
          id={(r) => r.key} open={(r) => go(toObject(collection, r.key))} empty={range.known ? "No object fits." : "Reading objects…"}
        />
      )}
      <p class="quiet foot">{range.known && range.total > 0 && `Rows ${count(range.offset + 1)} to ${count(range.offset + range.keys.length)} are kept up to date; others are read when they come into view.`}</p>
    </>
  );
}

const waiting: Column<Row>[] = [{ name: "Name", width: "1fr", cell: (r) => r.key }];
