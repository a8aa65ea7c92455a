import type { VNode } from "preact";
import { KeyAction } from "../../gen/deltaplane/console/v1/console_pb";
import { Badge, Facts, Fault, Head, sentence, Silence, StateBadge, Waiting } from "../ui/bits";
import { ms, useTitle, useView } from "../view";
import { askKeys, keyActions } from "../keys";
import { clock, count, span } from "../format";
import { to, toQueue } from "../route";
import type { Moment } from "../../gen/deltaplane/console/v1/views_pb";

function Timeline({ of }: { of: readonly Moment[] }): VNode {
  let before: number | undefined;
  return (
    <ol class="timeline">
      {of.map((m, i) => {
        const t = ms(m.time);
        const gap = t !== undefined && before !== undefined ? t - before : undefined;
        if (t !== undefined) before = t;
        return (
          <li key={i} class={t === undefined ? "now" : ""}>
            <span class="when">{t === undefined ? "now" : <time dateTime={new Date(t).toISOString()} title={new Date(t).toISOString()}>{clock(t, true)}</time>}</span>
            <span class="gap">{gap !== undefined && gap > 0 ? "+" + span(gap / 1000) : ""}</span>
            <span class="what"><strong>{m.what}</strong>{m.by && <> <span class="by">{m.by}</span></>}{m.detail && <span class="detail">{m.detail}</span>}</span>
          </li>
        );
      })}
    </ol>
  );
}

export function KeyPage({ queue, name }: { queue: string; name: string }): VNode {
  useTitle(`${name} in ${queue}`);
  const { value: k, at, failure } = useView("key", `key ${queue} ${name}`, { case: "key", value: { queue, key: name } });
  const item = k?.item;
  const time = (t: number | undefined) => (t === undefined ? undefined : clock(t, true));
  return (
    <>
      <Head title={name} over={<><a href={to(["queues"])}>Queues</a> / <a href={toQueue(queue)}>{queue}</a></>}>
        {k && ([KeyAction.RETRY, KeyAction.FRONT, KeyAction.RELEASE, KeyAction.DELETE] as const).map((a) => (
          <button key={a} type="button" class={keyActions[a].danger ? "danger" : ""} onClick={() => askKeys(queue, [name], a)}>{keyActions[a].verb}</button>
        ))}
      </Head>
      <Fault failure={failure} at={at} />
      {!k && !failure && <Waiting what="what happened to the key" />}
      {k && <>
        <Silence of={k.silent} />
        <section class="why" aria-label="Why it waits">
          <p class="causes"><StateBadge state={k.state} /> <code>{k.cause}</code>{k.also.map((c) => <span key={c}> also <code>{c}</code></span>)}</p>
          <p class="sentence" aria-live="polite">{sentence(k.sentence)}</p>
        </section>
        {item && <Facts of={[
          ["Holder", item.holder],
          ["Lease ends", time(ms(item.deadline))],
          ["First added", time(ms(item.addedAt))],
          ["Ready at", time(ms(item.readyAt))],
          ["Due", time(ms(item.delayedUntil))],
          ["Rate-limited adds", item.requeues > 0n && count(item.requeues)],
          ["Leases since it was settled", item.attempt > 0n && count(item.attempt)],
          ["Priority", item.priority !== 0 && String(item.priority)],
          ["Last reason", item.lastReason && <Badge tone="quiet">{item.lastReason}</Badge>],
        ]} />}
        <section aria-labelledby="timeline">
          <h2 id="timeline">Timeline</h2>
          {k.timeline.length > 0 ? <Timeline of={k.timeline} /> : <p class="quiet">Nothing is known of the key: the queue's servers have not seen it since they were started.</p>}
        </section>
      </>}
    </>
  );
}
