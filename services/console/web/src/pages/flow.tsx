import type { ComponentChildren, VNode } from "preact";
import { useEffect } from "preact/hooks";
import { Badge, Fault, Head, Health, Silence, toneOf, Waiting, type Tone } from "../ui/bits";
import { Spark } from "../ui/spark";
import { ms, seconds, useTitle, useView } from "../view";
import { SeriesSet, type Series } from "../series";
import { count, plural, rate, short, span } from "../format";
import { to, toCollection, toQueue } from "../route";
import type { Flow, FlowCollection, QueueSummary } from "../../gen/deltaplane/console/v1/views_pb";

const history = new SeriesSet();
const busiest = 12;

interface Sums {
  mirrors: number;
  failing: number;
  warning: number;
  rate: number;
  pending: number;
  lag: number | undefined;
  served: number;
  unserved: number;
  behind: number;
  watchers: number;
  workers: number;
  free: number;
  oldest: number | undefined;
  added: number | undefined;
  done: number | undefined;
}

function sum(f: Flow): Sums {
  const s: Sums = {
    mirrors: 0, failing: 0, warning: 0, rate: f.totals?.publishedRate ?? 0, pending: 0, lag: undefined, served: 0, unserved: 0, behind: 0,
    watchers: 0, workers: 0, free: 0, oldest: undefined, added: undefined, done: undefined,
  };
  for (const { mirror, served } of f.collections) {
    if (mirror) {
      s.mirrors++;
      if (mirror.health === Health.FAILING) s.failing++;
      if (mirror.health === Health.WARNING) s.warning++;
      s.pending += Number(mirror.pending);
      s.lag = most(s.lag, seconds(mirror.lag));
    }
    if (served) {
      s.served++;
      if (served.health === Health.FAILING) s.unserved++;
      s.behind += Number(served.lagRecords);
      s.watchers += Number(served.watchers);
    }
  }
  for (const q of f.queues) {
    s.workers += Number(q.workers?.connected ?? 0n);
    s.free += Number(q.workers?.free ?? 0n);
    s.oldest = most(s.oldest, seconds(q.oldestReady));
    if (q.rates) {
      s.added = (s.added ?? 0) + q.rates.adds;
      s.done = (s.done ?? 0) + q.rates.settlements;
    }
  }
  return s;
}

function most(a: number | undefined, b: number | undefined): number | undefined {
  return b === undefined ? a : Math.max(a ?? 0, b);
}

interface StageProps {
  name: string;
  href: string;
  tone: Tone;
  word: string;
  figure: string;
  unit: string;
  series: Series;
  notes: [string, ComponentChildren][];
  moving: boolean;
}

function Stage({ name, href, tone, word, figure, unit, series, notes, moving }: StageProps): VNode {
  return (
    <li class={"stage" + (moving ? " moving" : "")}>
      <h2><a href={href}>{name}</a> <Badge tone={tone}>{word}</Badge></h2>
      <p class="figure"><strong>{figure}</strong> {unit}</p>
      <Spark series={[series]} label={`${name}: ${unit} over the last minutes, now ${figure}`} />
      <dl>{notes.map(([n, v]) => <div key={n}><dt>{n}</dt><dd>{v}</dd></div>)}</dl>
    </li>
  );
}

function Stages({ flow }: { flow: Flow }): VNode {
  const s = sum(flow);
  const t = flow.totals;
  const held = Number(t?.processing ?? 0n);
  const dead = Number(t?.dead ?? 0n);
  const silent = (part: string) => flow.silent.some((x) => x.part === part);
  const lagging = s.behind > 1000;
  const paused = flow.queues.filter((q) => q.paused).length;
  const idle = flow.queues.filter((q) => Number(q.ready) > 0 && Number(q.workers?.connected ?? 1n) === 0).length;
  return (
    <ol class="stages" aria-label="From the API server to the controllers">
      <Stage
        name="Reflectors" href={to(["collections"])} series={history.of("rate")} figure={rate(s.rate)} unit="published" moving={s.rate > 0}
        tone={silent("reflector") || s.failing ? "failing" : s.warning ? "warning" : "well"}
        word={silent("reflector") ? "silent" : s.failing ? `${s.failing} failing` : s.warning ? `${s.warning} to look at` : "well"}
        notes={[["Collections", count(s.mirrors)], ["Highest lag", span(s.lag)]]}
      />
      <Stage
        name="Logs" href={to(["collections"])} series={history.of("pending")} figure={short(s.pending)} unit="waiting for the log" moving={s.rate > 0}
        tone={silent("reflector") ? "quiet" : s.pending > 1000 ? "warning" : "well"} word={silent("reflector") ? "unknown" : s.pending > 1000 ? "slow" : "well"}
        notes={[["Appended", rate(s.rate)], ["Quarantined", count(flow.collections.reduce((n, c) => n + Number(c.mirror?.quarantined ?? 0n), 0))]]}
      />
      <Stage
        name="Indexes" href={to(["collections"])} series={history.of("behind")} figure={short(s.behind)} unit="records behind" moving={s.rate > 0}
        tone={silent("index") || s.unserved ? "failing" : lagging ? "warning" : "well"}
        word={silent("index") ? "silent" : s.unserved ? `${s.unserved} not serving` : lagging ? "lagging" : "well"}
        notes={[["Objects", short(Number(t?.objects ?? 0n))], ["Watches", count(s.watchers)]]}
      />
      <Stage
        name="Queues" href={to(["queues"])} series={history.of("ready")} figure={short(Number(t?.ready ?? 0n))} unit="ready" moving={held > 0}
        tone={silent("queue") ? "failing" : dead || paused ? "warning" : "well"}
        word={silent("queue") ? "silent" : dead ? `${short(dead)} dead` : paused ? `${paused} paused` : "well"}
        notes={[["Added", rate(s.added)], ["Delayed", short(Number(t?.delayed ?? 0n))], ["Oldest", s.oldest === undefined ? "none" : span(s.oldest)]]}
      />
      <Stage
        name="Controllers" href={to(["queues"])} series={history.of("held")} figure={short(held)} unit="keys held" moving={held > 0}
        tone={silent("queue") ? "quiet" : idle ? "failing" : "well"} word={silent("queue") ? "unknown" : idle ? "no worker" : "well"}
        notes={[["Done", rate(s.done)], ["Workers", count(s.workers)], ["Free", count(s.free)]]}
      />
    </ol>
  );
}

/** What somebody should look at, in words. */
function troubles(flow: Flow): { key: string; tone: Tone; name: VNode; text: string }[] {
  const out: { key: string; tone: Tone; name: VNode; text: string }[] = [];
  for (const { collection, mirror, served } of flow.collections) {
    const name = <a href={toCollection(collection)}>{collection}</a>;
    if (mirror && mirror.health > Health.WELL) {
      out.push({ key: "m" + collection, tone: toneOf(mirror.health), name, text: `Reflector: ${mirror.reason || mirror.state}${mirror.lastError ? ": " + mirror.lastError : ""}` });
    }
    if (served && served.health > Health.WELL) {
      out.push({ key: "s" + collection, tone: toneOf(served.health), name, text: `Index: ${served.state}${served.lastError ? ": " + served.lastError : ""}` });
    }
  }
  for (const q of flow.queues) {
    if (q.health <= Health.WELL) continue;
    const words = [
      q.paused && "paused", q.closed && "closed", q.unreachable.length > 0 && `${plural(q.unreachable.length, "partition")} unreachable`,
      q.dead > 0n && `${count(q.dead)} dead`, q.heldUntil && "hands out nothing until leases of before a restart have ended",
      Number(q.ready) > 0 && q.workers?.connected === 0n && "no worker connected",
    ].filter(Boolean).join(", ");
    out.push({ key: "q" + q.queue, tone: toneOf(q.health), name: <a href={toQueue(q.queue)}>{q.queue}</a>, text: "Queue: " + (words || "deserves a look") });
  }
  return out.sort((a, b) => Number(a.tone !== "failing") - Number(b.tone !== "failing"));
}

function byRate(a: FlowCollection, b: FlowCollection): number {
  return (b.mirror?.publishedRate ?? 0) - (a.mirror?.publishedRate ?? 0) || Number(b.served?.objects ?? 0n) - Number(a.served?.objects ?? 0n);
}

function byWork(a: QueueSummary, b: QueueSummary): number {
  return Number(b.ready + b.processing + b.dead) - Number(a.ready + a.processing + a.dead) || a.queue.localeCompare(b.queue);
}

export function FlowPage(): VNode {
  useTitle("Flow");
  const { value: flow, at, failure } = useView("flow", "flow", { case: "flow", value: {} });
  const when = ms(flow?.at);
  useEffect(() => {
    if (!flow || !when) return;
    const s = sum(flow);
    history.of("rate").add(when, s.rate);
    history.of("pending").add(when, s.pending);
    history.of("behind").add(when, s.behind);
    history.of("ready").add(when, Number(flow.totals?.ready ?? 0n));
    history.of("held").add(when, Number(flow.totals?.processing ?? 0n));
    for (const c of flow.collections) if (c.mirror) history.of("c " + c.collection).add(when, c.mirror.publishedRate);
    for (const q of flow.queues) history.of("q " + q.queue).add(when, Number(q.ready));
  }, [when]);
  if (!flow) return <><Head title="Flow" /><Fault failure={failure} />{!failure && <Waiting what="the pipeline" />}</>;
  const wrong = troubles(flow);
  return (
    <>
      <Head title="Flow" />
      <Fault failure={failure} at={at} />
      <Silence of={flow.silent} />
      <Stages flow={flow} />
      <section aria-labelledby="attention">
        <h2 id="attention">Needs a look</h2>
        {wrong.length === 0
          ? <p class="quiet">Nothing: every collection is mirrored and served, every queue is worked.</p>
          : <ul class="troubles">{wrong.slice(0, 20).map((w) => <li key={w.key}><Badge tone={w.tone}>{w.tone}</Badge> {w.name} <span>{w.text}</span></li>)}</ul>}
        {wrong.length > 20 && <p class="quiet">And {count(wrong.length - 20)} more.</p>}
      </section>
      <div class="pair">
        <section aria-labelledby="busy-collections">
          <h2 id="busy-collections">Busiest collections <a class="all" href={to(["collections"])}>all {count(flow.collections.length)}</a></h2>
          <table>
            <thead><tr><th scope="col">Collection</th><th scope="col" class="num">Published</th><th scope="col" class="w2"><span class="hidden">Rate over time</span></th><th scope="col" class="num">Lag</th><th scope="col" class="num">Objects</th></tr></thead>
            <tbody>
              {[...flow.collections].sort(byRate).slice(0, busiest).map((c) => (
                <tr key={c.collection}>
                  <th scope="row"><a href={toCollection(c.collection)}>{c.collection}</a></th>
                  <td class="num">{rate(c.mirror?.publishedRate)}</td>
                  <td class="w2 sparkcell"><Spark series={[history.of("c " + c.collection)]} label={`Rate of ${c.collection} over the last minutes`} height={18} /></td>
                  <td class="num">{span(seconds(c.mirror?.lag))}</td>
                  <td class="num">{c.served ? short(Number(c.served.objects)) : "–"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
        <section aria-labelledby="busy-queues">
          <h2 id="busy-queues">Busiest queues <a class="all" href={to(["queues"])}>all {count(flow.queues.length)}</a></h2>
          <table>
            <thead><tr><th scope="col">Queue</th><th scope="col" class="num">Ready</th><th scope="col" class="w2"><span class="hidden">Ready over time</span></th><th scope="col" class="num">Delayed</th><th scope="col" class="num">Leased</th><th scope="col" class="num">Dead</th></tr></thead>
            <tbody>
              {[...flow.queues].sort(byWork).slice(0, busiest).map((q) => (
                <tr key={q.queue}>
                  <th scope="row"><a href={toQueue(q.queue)}>{q.queue}</a></th>
                  <td class="num">{short(Number(q.ready))}</td>
                  <td class="w2 sparkcell"><Spark series={[history.of("q " + q.queue)]} label={`Ready keys of ${q.queue} over the last minutes`} height={18} /></td>
                  <td class="num">{short(Number(q.delayed))}</td>
                  <td class="num">{short(Number(q.processing))}</td>
                  <td class={"num" + (q.dead > 0n ? " bad" : "")}>{short(Number(q.dead))}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      </div>
    </>
  );
}
