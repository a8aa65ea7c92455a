import type { VNode } from "preact";
import { useMemo } from "preact/hooks";
import { Badge, Fault, Head, toneOf, Waiting } from "../ui/bits";
import { VirtualList, type Column } from "../ui/virtual";
import { seconds, useTitle, useView } from "../view";
import { count, plural, rate, span } from "../format";
import { go, place, refine, toQueue } from "../route";
import type { QueueSummary, Rates } from "../../gen/deltaplane/console/v1/views_pb";

/** How a queue is, in few words. */
export function stateOf(q: QueueSummary): string {
  if (q.unreachable.length > 0) return "unreachable";
  if (q.heldUntil) return "held";
  if (q.paused) return q.closed ? "paused, closed" : "paused";
  if (q.closed) return "closed";
  if (q.ready > 0n && q.workers?.connected === 0n) return "no worker";
  if (q.dead > 0n) return "dead keys";
  return "open";
}

const number = (name: string, of: (q: QueueSummary) => bigint, rank: 1 | 2 | 3, bad = false): Column<QueueSummary> => ({
  name, width: "minmax(7ch, 1fr)", right: true, rank, cell: (q) => <span class={bad && of(q) > 0n ? "bad" : of(q) === 0n ? "zero" : ""}>{count(of(q))}</span>,
});

const perSecond = (name: string, of: (r: Rates) => number): Column<QueueSummary> => ({
  name, width: "minmax(7ch, 1fr)", right: true, rank: 2, cell: (q) => <span class={q.rates && of(q.rates) === 0 ? "zero" : ""}>{rate(q.rates && of(q.rates))}</span>,
});

const columns: Column<QueueSummary>[] = [
  { name: "Queue", width: "minmax(10ch, 3fr)", cell: (q) => <a href={toQueue(q.queue)} tabIndex={-1}>{q.queue}</a> },
  { name: "State", width: "minmax(9ch, 1.2fr)", rank: 2, cell: (q) => <Badge tone={toneOf(q.health)}>{stateOf(q)}</Badge> },
  number("Ready", (q) => q.ready, 1),
  number("Delayed", (q) => q.delayed, 2),
  number("Leased", (q) => q.processing, 2),
  number("Dead", (q) => q.dead, 1, true),
  perSecond("Added", (r) => r.adds),
  perSecond("Done", (r) => r.settlements),
  { name: "Oldest", width: "minmax(8ch, 1fr)", right: true, rank: 3, cell: (q) => (q.oldestReady ? span(seconds(q.oldestReady)) : "–") },
];

export function QueuesPage(): VNode {
  useTitle("Queues");
  const { value, at, failure } = useView("queues", "queues", { case: "queues", value: {} });
  const text = place.value.query.get("text") ?? "";
  const rows = useMemo(() => (value?.queues ?? []).filter((q) => q.queue.includes(text)), [value, text]);
  return (
    <>
      <Head title="Queues">{value?.engine && <p class="quiet">Store: {value.engine}</p>}</Head>
      <Fault failure={failure} at={at} />
      <div class="filters">
        <label class="field">Name contains
          <input type="search" value={text} onInput={(e) => refine({ text: e.currentTarget.value })} autocomplete="off" spellcheck={false} />
        </label>
        {value && <p class="quiet">{plural(rows.length, "queue")}</p>}
      </div>
      {value ? (
        <VirtualList
          label="Queues" columns={columns} total={rows.length} at={(i) => rows[i]} id={(q) => q.queue} open={(q) => go(toQueue(q.queue))}
          empty={value.queues.length === 0 ? "No queue is configured. A controller configures its own when it starts." : "No queue has this in its name."}
        />
      ) : !failure && <Waiting what="the queues" />}
    </>
  );
}
