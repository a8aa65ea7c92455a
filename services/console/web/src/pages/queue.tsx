import type { VNode } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { KeyAction, QueueAction } from "../../gen/deltaplane/console/v1/console_pb";
import { KeyState, type Queue, type QueueKey } from "../../gen/deltaplane/console/v1/views_pb";
import { Badge, Facts, Fault, Head, StateBadge, toneOf, Waiting } from "../ui/bits";
import { VirtualList, type Column } from "../ui/virtual";
import { Spark } from "../ui/spark";
import { SeriesSet } from "../series";
import { opened, Watching, type News } from "../session";
import { ms, seconds, useTitle } from "../view";
import { askKeys, askQueue, keyActions, queueActions } from "../keys";
import { count, plural, short, span } from "../format";
import { go, place, refine, to, toKey } from "../route";
import { stateOf } from "./queues";

const history = new SeriesSet();

const states: [string, string, KeyState][] = [
  ["", "All", KeyState.UNSPECIFIED], ["ready", "Ready", KeyState.READY], ["delayed", "Delayed", KeyState.DELAYED], ["leased", "Leased", KeyState.PROCESSING], ["dead", "Dead", KeyState.DEAD],
];

/** A queue and the keys of it around those in view. */
function useQueue(queue: string, text: string, state: KeyState) {
  const name = JSON.stringify([queue, text, state]);
  const [seen, setSeen] = useState<{ queue?: Queue; at?: number; failure?: News["failure"]; name: string }>({ name });
  const watching = useRef<Watching | undefined>(undefined);
  const asked = useRef({ offset: 0, limit: 100 });
  useEffect(() => {
    asked.current = { offset: 0, limit: 100 };
    const w = new Watching({ case: "queue", value: { queue, text, state, ...asked.current } }, (news) => {
      setSeen((old) => {
        if (news.content?.case === "queue") return { queue: news.content.value, at: news.at ?? 0, name };
        return { ...old, failure: news.failure };
      });
    });
    watching.current = w;
    return () => { w.end(); watching.current = undefined; };
  }, [name]);
  const look = useMemo(() => (first: number, number: number) => {
    const now = asked.current;
    if (first >= now.offset && first + number <= now.offset + now.limit) return;
    const limit = Math.min(opened.value?.maxRows || 200, Math.max(100, number * 3));
    asked.current = { offset: Math.max(0, first - Math.floor((limit - number) / 2)), limit };
    watching.current?.replace({ case: "queue", value: { queue, text, state, ...asked.current } });
  }, [name]);
  return { ...seen, look };
}

/** What a key waits for, or how long it has done what it does. */
function since(k: QueueKey, now: number): string {
  const ago = (t: number | undefined) => (t === undefined ? "" : span((now - t) / 1000));
  switch (k.state) {
    case KeyState.READY: return "for " + ago(ms(k.readyAt) ?? ms(k.addedAt));
    case KeyState.DELAYED: {
      const due = ms(k.delayedUntil) ?? ms(k.readyAt);
      return due === undefined ? "" : due > now ? "in " + span((due - now) / 1000) : "due";
    }
    case KeyState.PROCESSING: case KeyState.DIRTY: {
      const end = ms(k.deadline);
      return end === undefined ? "" : end > now ? "lease ends in " + span((end - now) / 1000) : "lease is over";
    }
  }
  return "";
}

function columnsOf(queue: string, now: { ms: number }, chosen: ReadonlySet<string>, toggle: (key: string) => void): Column<QueueKey>[] {
  return [
    { name: "Select", width: "3.2rem", cell: (k) => <input type="checkbox" aria-label={"Select " + k.key} tabIndex={-1} checked={chosen.has(k.key)} onChange={() => toggle(k.key)} /> },
    { name: "Key", width: "minmax(12ch, 3fr)", cell: (k) => <a href={toKey(queue, k.key)} tabIndex={-1}>{k.key}</a> },
    { name: "State", width: "minmax(9ch, 1fr)", cell: (k) => <StateBadge state={k.state} /> },
    { name: "When", width: "minmax(11ch, 1.4fr)", rank: 2, cell: (k) => since(k, now.ms) },
    { name: "Holder", width: "minmax(8ch, 1.4fr)", rank: 3, cell: (k) => k.holder },
    { name: "Retries", width: "minmax(7ch, .6fr)", rank: 2, right: true, cell: (k) => count(k.requeues) },
    { name: "Last reason", width: "minmax(10ch, 2.4fr)", rank: 3, cell: (k) => <span title={k.lastReason}>{k.lastReason}</span> },
  ];
}

export function QueuePage({ queue }: { queue: string }): VNode {
  useTitle(queue);
  const { query } = place.value;
  const text = query.get("key") ?? "";
  const state = states.find(([word]) => word === (query.get("state") ?? "")) ?? states[0]!;
  const { queue: q, at, failure, look } = useQueue(queue, text, state[2]);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const s = q?.summary;
  const store = ms(q?.storeTime) ?? Date.now();
  useEffect(() => {
    if (!s || !at) return;
    history.of(queue + " ready").add(at, Number(s.ready));
    history.of(queue + " held").add(at, Number(s.processing));
  }, [at]);
  const toggle = (key: string) => setChosen((old) => {
    const next = new Set(old);
    if (!next.delete(key)) next.add(key);
    return next;
  });
  const columns = useMemo(() => columnsOf(queue, { ms: store }, chosen, toggle), [queue, store, chosen]);
  const set = (change: { key?: string; state?: string }) => {
    setChosen(new Set());
    refine({ key: text, state: state[0], ...change });
  };
  const counts: Record<string, bigint | undefined> = { ready: s?.ready, delayed: s?.delayed, leased: s?.processing, dead: s?.dead };
  const keys = [...chosen];
  const act = (action: Exclude<QueueAction, QueueAction.UNSPECIFIED>, then?: () => void) => (
    <button type="button" class={queueActions[action].danger ? "danger" : ""} onClick={() => askQueue(queue, action, then)}>{queueActions[action].verb}</button>
  );
  return (
    <>
      <Head title={queue} over={<a href={to(["queues"])}>Queues</a>}>
        {s && <>
          {s.paused ? act(QueueAction.RESUME) : act(QueueAction.PAUSE)}
          {s.closed ? act(QueueAction.OPEN) : act(QueueAction.CLOSE)}
          {act(QueueAction.DELETE, () => go(to(["queues"])))}
        </>}
      </Head>
      <Fault failure={failure} at={at} />
      <form class="filters" role="search" aria-label="Keys of the queue" onSubmit={(e) => { e.preventDefault(); if (text.includes("/") && q?.total === 1 && q.keys[0]) go(toKey(queue, q.keys[0].key)); }}>
        <label class="field wide">Find a key
          <input type="search" name="key" value={text} placeholder="default/hello, or a part of it" autocomplete="off" spellcheck={false} onInput={(e) => set({ key: e.currentTarget.value })} />
        </label>
        <div class="tabs" role="group" aria-label="State">
          {states.map(([word, label]) => (
            <button key={word} type="button" aria-pressed={word === state[0]} onClick={() => set({ state: word })}>
              {label}{counts[word] !== undefined && <span class={"n" + (word === "dead" && counts[word] > 0n ? " bad" : "")}>{short(Number(counts[word]))}</span>}
            </button>
          ))}
        </div>
      </form>
      {q?.refusesAdds && <p class="note failing" role="alert"><strong>The store takes no adds.</strong> {q.refusesAdds}</p>}
      {s && s.paused && <p class="note warning" role="status"><strong>The queue is paused.</strong> No keys are handed out until somebody resumes it.</p>}
      {s && s.unreachable.length > 0 && <p class="note failing" role="alert"><strong>{plural(s.unreachable.length, "partition")} cannot be reached.</strong> Nothing here is of {s.unreachable.length === 1 ? "it" : "them"}.</p>}
      <div class="bulk" role="group" aria-label="Selected keys">
        <span>{keys.length === 0 ? "Select keys to act on them." : `${plural(keys.length, "key")} selected`}</span>
        {([KeyAction.RETRY, KeyAction.FRONT, KeyAction.RELEASE, KeyAction.DELETE] as const).map((a) => (
          <button key={a} type="button" class={keyActions[a].danger ? "danger" : ""} disabled={keys.length === 0} onClick={() => askKeys(queue, keys, a, () => setChosen(new Set()))}>{keyActions[a].verb}</button>
        ))}
        {q && q.keys.length > 0 && <button type="button" class="plain" onClick={() => setChosen(keys.length > 0 ? new Set() : new Set(q.keys.map((k) => k.key)))}>{keys.length > 0 ? "Select none" : `Select the ${count(q.keys.length)} shown`}</button>}
      </div>
      {q ? (
        <VirtualList
          label={`Keys of ${queue}`} columns={columns} total={q.total} at={(i) => q.keys[i - q.offset]} id={(k) => k.key} onRange={look}
          open={(k) => go(toKey(queue, k.key))} toggle={(k) => toggle(k.key)}
          empty={text ? "No key contains this. A whole key is found wherever it stands; a part among the first 10,000 keys." : "No keys here."}
        />
      ) : !failure && <Waiting what="the queue" />}
      {q?.more && <p class="quiet foot">There are more keys than the {count(q.total)} that were read. Search for a key to find it.</p>}
      {q && s && (
        <div class="pair">
          <section aria-labelledby="latencies">
            <h2 id="latencies">Latencies</h2>
            <table>
              <thead><tr><th scope="col">Of keys that are</th><th scope="col" class="num">Keys</th><th scope="col" class="num">p50</th><th scope="col" class="num">p99</th><th scope="col" class="num">Longest</th></tr></thead>
              <tbody>
                {q.latencies.map((l) => (
                  <tr key={l.of}><th scope="row">{({ ready: "ready: waited so far", processing: "leased: held so far", overdue: "delayed: past their time" } as Record<string, string>)[l.of] ?? l.of}</th>
                    <td class="num">{count(l.keys)}</td><td class="num">{span(seconds(l.p50))}</td><td class="num">{span(seconds(l.p99))}</td><td class="num">{span(seconds(l.max))}</td></tr>
                ))}
                {q.latencies.length === 0 && <tr><td colSpan={5} class="quiet">No keys to measure.</td></tr>}
              </tbody>
            </table>
            <Spark series={[history.of(queue + " ready"), history.of(queue + " held")]} colors={["--accent", "--second"]} axes height={150} format={short} label="Ready and leased keys over the last minutes" />
            <p class="legend"><span class="one">ready</span> <span class="two">leased</span></p>
          </section>
          <section aria-labelledby="settings">
            <h2 id="settings">State and settings</h2>
            <Facts of={[
              ["State", <Badge tone={toneOf(s.health)}>{stateOf(s)}</Badge>],
              ["Workers", s.workers && `${count(s.workers.connected)} connected, ${count(s.workers.free)} free`],
              ["Oldest ready", s.oldestReady && span(seconds(s.oldestReady))],
              ["Added again while leased", s.dirty > 0n && count(s.dirty)],
              ...q.settings.map((x): [string, string] => [x.name.charAt(0).toUpperCase() + x.name.slice(1), x.value]),
            ]} />
          </section>
        </div>
      )}
    </>
  );
}
