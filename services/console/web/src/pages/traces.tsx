import type { VNode } from "preact";
import { useMemo } from "preact/hooks";
import { Badge, Fault, Head, Waiting } from "../ui/bits";
import { VirtualList, type Column } from "../ui/virtual";
import { ms, seconds, useTitle, useView } from "../view";
import { clock, count, plural, span } from "../format";
import { go, place, refine, toTrace } from "../route";
import type { TraceSummary } from "../../gen/deltaplane/console/v1/views_pb";

const columns: Column<TraceSummary>[] = [
  { name: "Trace", width: "minmax(14ch, 3fr)", cell: (t) => <a href={toTrace(t.id)} tabIndex={-1}>{t.name || t.id}</a> },
  { name: "Result", width: "minmax(7ch, .8fr)", cell: (t) => <Badge tone={t.failed ? "failing" : "well"}>{t.failed ? "error" : "ok"}</Badge> },
  { name: "Duration", width: "minmax(8ch, 1fr)", right: true, cell: (t) => span(seconds(t.duration)) },
  { name: "Spans", width: "minmax(6ch, .6fr)", right: true, rank: 2, cell: (t) => count(t.spans) },
  { name: "Began", width: "minmax(12ch, 1fr)", rank: 2, cell: (t) => clock(ms(t.begin) ?? 0, true) },
  { name: "Services", width: "minmax(12ch, 2fr)", rank: 3, cell: (t) => t.services.join(", ") },
];

export function TracesPage(): VNode {
  useTitle("Traces");
  const { query } = place.value;
  const text = query.get("text") ?? "";
  const failed = query.get("failed") === "yes";
  const { value, at, failure } = useView("traces", `traces ${failed} ${text}`, { case: "traces", value: { text, failed } });
  const rows = useMemo(() => value?.traces ?? [], [value]);
  const set = (t: string, f: boolean) => refine({ text: t, failed: f ? "yes" : "" });
  return (
    <>
      <Head title="Traces" />
      <Fault failure={failure} at={at} />
      {value && !value.stored ? (
        <p class="note" role="status"><strong>There is no store of traces here.</strong> They are where OTLP sends them. Without a collector, <code>deltaplane up</code> keeps the last 1,000 and shows them here.</p>
      ) : (
        <div class="filters">
          <label class="field">Name or attribute contains
            <input type="search" value={text} onInput={(e) => set(e.currentTarget.value, failed)} autocomplete="off" spellcheck={false} />
          </label>
          <label class="check"><input type="checkbox" checked={failed} onChange={(e) => set(text, e.currentTarget.checked)} /> Only with an error</label>
          {value && <p class="quiet">{plural(rows.length, "trace")}, newest first</p>}
        </div>
      )}
      {!value && !failure && <Waiting what="the traces" />}
      {value?.stored && (
        <VirtualList
          label="Traces" columns={columns} total={rows.length} at={(i) => rows[i]} id={(t) => t.id} open={(t) => go(toTrace(t.id))}
          empty="No trace fits. What is recorded is a sample of all changes, as --trace-ratio says."
        />
      )}
    </>
  );
}
