import type { VNode } from "preact";
import { memo } from "./memo";

/** The parts of a line of YAML that have a colour of their own. */
function parts(line: string): VNode[] {
  const [, indent = "", dash = "", rest = ""] = /^(\s*)((?:- )*)(.*)$/.exec(line) ?? [];
  const out: VNode[] = [];
  const add = (kind: string, text: string) => { if (text) out.push(<span key={out.length} class={kind}>{text}</span>); };
  add("y", indent);
  add("y-mark", dash);
  const pair = /^("(?:[^"\\]|\\.)*"|'[^']*'|[^\s:#'"[{][^:#]*?)(:)(\s.*|)$/.exec(rest);
  let value = rest;
  if (pair) {
    add("y-key", pair[1]!);
    add("y-mark", ":");
    value = pair[3]!;
  }
  add(kindOf(value.trim()), value);
  return out;
}

function kindOf(value: string): string {
  if (value === "") return "y";
  if (/^(true|false|null|~)$/.test(value)) return "y-word";
  if (/^-?\d+(\.\d+)?([eE][+-]?\d+)?$/.test(value)) return "y-num";
  return "y-text";
}

interface Props {
  text: string;
  /** Lines that are marked, by their text. */
  fresh?: ReadonlySet<string>;
}

/** YAML with line numbers; what changed last has a mark. */
export const Yaml = memo(function Yaml({ text, fresh }: Props): VNode {
  const lines = text.replace(/\n$/, "").split("\n");
  return (
    <pre class="yaml" tabIndex={0} role="region" aria-label="YAML"><code>
      {lines.map((line, i) => <span key={i} class={"line" + (fresh?.has(line) ? " fresh" : "")}>{parts(line)}{"\n"}</span>)}
    </code></pre>
  );
});

/** The text without metadata.managedFields, which nobody reads. */
export function withoutManagedFields(text: string): string {
  const out: string[] = [];
  let skip = -1;
  for (const line of text.split("\n")) {
    const indent = line.length - line.trimStart().length;
    // A list may stand at the indent of its name.
    if (skip >= 0 && (indent > skip || (indent === skip && line.trimStart().startsWith("-")) || line === "")) continue;
    skip = -1;
    if (/^\s+managedFields:/.test(line)) { skip = indent; continue; }
    out.push(line);
  }
  return out.join("\n");
}
