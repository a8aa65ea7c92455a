import type { VNode } from "preact";
import { useMemo } from "preact/hooks";
import { Badge, Fault, Head, Silence, toneOf, Waiting } from "../ui/bits";
import { VirtualList, type Column } from "../ui/virtual";
import { seconds, useTitle, useView } from "../view";
import { bytes, count, plural, rate, span } from "../format";
import { go, place, refine, toCollection } from "../route";
import type { FlowCollection } from "../../gen/deltaplane/console/v1/views_pb";

const columns: Column<FlowCollection>[] = [
  { name: "Collection", width: "minmax(12ch, 3fr)", cell: (c) => <a href={toCollection(c.collection)} tabIndex={-1}>{c.collection}</a> },
  { name: "Objects", width: "minmax(7ch, 1fr)", right: true, cell: (c) => (c.served ? count(c.served.objects) : "–") },
  { name: "Reflector", width: "minmax(11ch, 1fr)", rank: 2, cell: (c) => (c.mirror ? <Badge tone={toneOf(c.mirror.health)}>{c.mirror.reason || c.mirror.state}</Badge> : "–") },
  { name: "Published", width: "minmax(8ch, 1fr)", right: true, rank: 2, cell: (c) => rate(c.mirror?.publishedRate) },
  { name: "Lag", width: "minmax(7ch, 1fr)", right: true, rank: 3, cell: (c) => span(seconds(c.mirror?.lag)) },
  { name: "Index", width: "minmax(10ch, 1fr)", cell: (c) => (c.served ? <Badge tone={toneOf(c.served.health)}>{c.served.state}</Badge> : "–") },
  { name: "Behind", width: "minmax(7ch, 1fr)", right: true, rank: 3, cell: (c) => (c.served ? count(c.served.lagRecords) : "–") },
  { name: "Memory", width: "minmax(9ch, 1fr)", right: true, rank: 3, cell: (c) => (c.served ? bytes(Number(c.served.memoryBytes)) : "–") },
  { name: "Watches", width: "minmax(8ch, 1fr)", right: true, rank: 3, cell: (c) => (c.served ? count(c.served.watchers) : "–") },
];

export function CollectionsPage(): VNode {
  useTitle("Collections");
  const { value: flow, at, failure } = useView("flow", "flow", { case: "flow", value: {} });
  const text = place.value.query.get("text") ?? "";
  const rows = useMemo(() => {
    const wanted = text.toLowerCase();
    return (flow?.collections ?? []).filter((c) => c.collection.includes(wanted) || c.served?.names.some((n) => n.includes(wanted)));
  }, [flow, text]);
  return (
    <>
      <Head title="Collections" />
      <Fault failure={failure} at={at} />
      {flow && <Silence of={flow.silent} />}
      <div class="filters">
        <label class="field">Name contains
          <input type="search" value={text} onInput={(e) => refine({ text: e.currentTarget.value })} autocomplete="off" spellcheck={false} />
        </label>
        {flow && <p class="quiet">{plural(rows.length, "collection")}</p>}
      </div>
      {flow ? (
        <VirtualList
          label="Collections" columns={columns} total={rows.length} at={(i) => rows[i]} id={(c) => c.collection} open={(c) => go(toCollection(c.collection))}
          empty={flow.collections.length === 0 ? "No collection is mirrored." : "No collection has this in its name."}
        />
      ) : !failure && <Waiting what="the collections" />}
    </>
  );
}
