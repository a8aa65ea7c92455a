import type { VNode } from "preact";
import { useMemo, useState } from "preact/hooks";
import { timestampMs } from "@bufbuild/protobuf/wkt";
import { Badge, Facts, Fault, Head, Waiting } from "../ui/bits";
import { seconds, useTitle, useView } from "../view";
import { clock, count, span } from "../format";
import { to, toTrace } from "../route";
import type { Span } from "../../gen/deltaplane/console/v1/views_pb";

interface Line {
  span: Span;
  depth: number;
  begin: number; // seconds behind the first
  length: number;
}

/** Spans in the order of a tree: each below the one it is in, by their begin. */
export function tree(spans: readonly Span[]): Line[] {
  const ids = new Set(spans.map((s) => s.id));
  const below = new Map<string, Span[]>();
  for (const s of spans) {
    const parent = ids.has(s.parent) ? s.parent : "";
    below.set(parent, [...(below.get(parent) ?? []), s]);
  }
  // Nanoseconds, which numbers of milliseconds do not hold.
  const nanos = (s: Span) => (s.begin ? s.begin.seconds * 1_000_000_000n + BigInt(s.begin.nanos) : 0n);
  const zero = spans.reduce((least, s) => (nanos(s) < least ? nanos(s) : least), spans[0] ? nanos(spans[0]) : 0n);
  const out: Line[] = [];
  const seen = new Set<string>();
  const walk = (parent: string, depth: number) => {
    for (const s of (below.get(parent) ?? []).sort((a, b) => Number(nanos(a) - nanos(b)))) {
      if (seen.has(s.id)) continue;
      seen.add(s.id);
      out.push({ span: s, depth, begin: Number(nanos(s) - zero) / 1e9, length: seconds(s.duration) ?? 0 });
      walk(s.id, depth + 1);
    }
  };
  walk("", 0);
  return out;
}

const hues = 6;

function Detail({ line }: { line: Line }): VNode {
  const { span: s } = line;
  return (
    <div class="spandetail">
      <Facts of={[
        ["Service", s.service], ["Begins after", span(line.begin)], ["Takes", span(line.length)],
        ["Error", s.error && <Badge tone="failing">{s.error}</Badge>],
        ["Linked to", s.links.length > 0 && s.links.map((l) => <a key={l} href={toTrace(l)}><code>{l}</code></a>)],
        ...s.attributes.map((a): [string, VNode] => [a.name, <code>{a.value}</code>]),
      ]} />
    </div>
  );
}

export function TracePage({ id }: { id: string }): VNode {
  const { value, at, failure } = useView("trace", "trace " + id, { case: "trace", value: { id } });
  const [open, setOpen] = useState<string>();
  const t = value?.summary;
  useTitle(t?.name || "Trace");
  const lines = useMemo(() => tree(value?.spans ?? []), [value]);
  const whole = Math.max(1e-9, ...lines.map((l) => l.begin + l.length));
  const services = [...new Set(lines.map((l) => l.span.service))];
  return (
    <>
      <Head title={t?.name || "Trace"} over={<a href={to(["traces"])}>Traces</a>}><p class="quiet"><code>{id}</code></p></Head>
      <Fault failure={failure} at={at} />
      {!value && !failure && <Waiting what="the trace" />}
      {value && !t && <p class="note warning" role="status"><strong>{value.stored ? "The store does not have this trace." : "There is no store of traces here."}</strong> It keeps the last 1,000 of one process; look where OTLP sends them.</p>}
      {t && <Facts of={[
        ["Began", t.begin && clock(timestampMs(t.begin), true)], ["Took", span(seconds(t.duration))], ["Spans", count(t.spans)],
        ["Result", <Badge tone={t.failed ? "failing" : "well"}>{t.failed ? "error" : "ok"}</Badge>], ["Services", t.services.join(", ")],
      ]} />}
      {lines.length > 0 && (
        <div class="waterfall">
          <div class="scale" aria-hidden="true">{[0, 0.25, 0.5, 0.75, 1].map((x) => <span key={x}>{span(whole * x)}</span>)}</div>
          <ol>
            {lines.map((l) => {
              const left = (l.begin / whole) * 100;
              const shown = open === l.span.id;
              return (
                <li key={l.span.id}>
                  <button type="button" class={"span" + (l.span.error ? " failed" : "")} aria-expanded={shown} onClick={() => setOpen(shown ? undefined : l.span.id)} style={{ "--depth": l.depth }}>
                    <span class="name"><span>{l.span.name}</span> <span class="by">{l.span.service}</span></span>
                    <span class="track" aria-hidden="true">
                      <span class={"bar hue" + (services.indexOf(l.span.service) % hues)} style={{ left: `${Math.min(99.5, left)}%`, width: `${Math.max(0.5, (l.length / whole) * 100)}%` }} />
                    </span>
                    <span class="took">{span(l.length)}{l.span.error && <span class="hidden">, failed</span>}</span>
                  </button>
                  {shown && <Detail line={l} />}
                </li>
              );
            })}
          </ol>
        </div>
      )}
    </>
  );
}
