import type { VNode } from "preact";
import { useMemo } from "preact/hooks";
import { Badge, Facts, Fault, Head, Silence, toneOf, Waiting } from "../ui/bits";
import { VirtualList, type Column } from "../ui/virtual";
import { ms, seconds, useNow, useTitle, useView } from "../view";
import { age, count, plural, span } from "../format";
import { place, refine, toCollection, toKey, toObject } from "../route";
import type { Node } from "../../gen/deltaplane/console/v1/views_pb";

const columns: Column<Node>[] = [
  { name: "Node", width: "minmax(12ch, 2fr)", cell: (n) => <a href={toObject(n.collection, n.name)} tabIndex={-1}>{n.name}</a> },
  { name: "Ready", width: "minmax(8ch, 1fr)", cell: (n) => <Badge tone={toneOf(n.health)}>{ready(n)}</Badge> },
  { name: "Silence", width: "minmax(8ch, 1fr)", right: true, cell: (n) => span(seconds(n.silence)) },
  { name: "Zone", width: "minmax(9ch, 1fr)", rank: 3, cell: (n) => n.zone || "–" },
  { name: "Taints", width: "minmax(12ch, 3fr)", rank: 3, cell: (n) => <span title={n.taints.join("\n")}>{n.taints.join(", ") || "–"}</span> },
  { name: "Pods", width: "minmax(6ch, .6fr)", rank: 2, right: true, cell: (n) => (n.podsKnown ? count(n.pods) : "–") },
  { name: "Evictions", width: "minmax(9ch, .8fr)", rank: 2, right: true, cell: (n) => <span class={n.evictions.length ? "bad" : "zero"}>{count(n.evictions.length)}</span> },
];

function ready(n: Node): string {
  return ({ True: "ready", False: "not ready" } as Record<string, string>)[n.ready] ?? "unknown";
}

function pods(collection: string): string {
  return collection.slice(0, collection.indexOf("/") + 1) + "pods.v1";
}

function Details({ node }: { node: Node }): VNode {
  const now = useNow(1000);
  const cluster = pods(node.collection);
  return (
    <section class="details" aria-labelledby="node-name">
      <h2 id="node-name">{node.name}</h2>
      <Facts of={[
        ["Ready", <Badge tone={toneOf(node.health)}>{ready(node)}</Badge>],
        ["Silent for", span(seconds(node.silence))],
        ["Zone", node.zone],
        ["New pods", node.unschedulable && "kept away (unschedulable)"],
        ["Pods", node.podsKnown && <a href={toCollection(cluster, { index: "node", value: node.name })}>{plural(node.pods, "pod")}</a>],
        ["Age", node.createdAt && age((now - ms(node.createdAt)!) / 1000)],
        ["Object", <a href={toObject(node.collection, node.name)}>{node.collection}</a>],
      ]} />
      <h3>Taints</h3>
      {node.taints.length === 0 ? <p class="quiet">None.</p> : <ul class="plainlist">{node.taints.map((t) => <li key={t}><code>{t}</code></li>)}</ul>}
      <h3>Evictions due</h3>
      {node.evictions.length === 0 ? <p class="quiet">None.</p> : (
        <table>
          <thead><tr><th scope="col">Pod</th><th scope="col" class="num">Due</th><th scope="col">Key</th></tr></thead>
          <tbody>
            {node.evictions.map((e) => {
              const due = ms(e.due);
              return <tr key={e.pod}><th scope="row"><a href={toObject(cluster, e.pod)}>{e.pod}</a></th>
                <td class="num">{due === undefined ? "–" : due > now ? "in " + span((due - now) / 1000) : "now"}</td>
                <td><a href={toKey(e.queue, e.pod)} aria-label={`Why ${e.pod} waits`}>why</a></td></tr>;
            })}
          </tbody>
        </table>
      )}
    </section>
  );
}

export function NodesPage(): VNode {
  const { query } = place.value;
  const chosen = query.get("node") ?? "";
  const text = query.get("text") ?? "";
  useTitle(chosen || "Nodes");
  const { value, at, failure } = useView("nodes", "nodes", { case: "nodes", value: {} });
  const rows = useMemo(() => (value?.nodes ?? []).filter((n) => n.name.includes(text) || n.zone.includes(text)), [value, text]);
  const node = value?.nodes.find((n) => n.name === chosen);
  return (
    <>
      <Head title="Nodes" />
      <Fault failure={failure} at={at} />
      {value && <Silence of={value.silent} />}
      <div class="filters">
        <label class="field">Name or zone contains
          <input type="search" value={text} onInput={(e) => refine({ node: chosen, text: e.currentTarget.value })} autocomplete="off" spellcheck={false} />
        </label>
        {value && <p class="quiet">{plural(rows.length, "node")}</p>}
      </div>
      {!value && !failure && <Waiting what="the nodes" />}
      {value && (
        <div class={chosen ? "beside" : ""}>
          <VirtualList
            label="Nodes" columns={columns} total={rows.length} at={(i) => rows[i]} id={(n) => n.collection + n.name}
            open={(n) => refine({ text, node: n.name === chosen ? "" : n.name })} empty={value.nodes.length === 0 ? "No cluster mirrors its nodes." : "No node fits."}
          />
          {node && <Details node={node} />}
          {chosen && !node && <p class="note warning" role="status">There is no node {chosen}.</p>}
        </div>
      )}
    </>
  );
}
