import type { VNode } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Badge, Facts, Fault, Head, Waiting } from "../ui/bits";
import { withoutManagedFields, Yaml } from "../ui/yaml";
import { say } from "../ui/ask";
import { ms, useTitle, useView } from "../view";
import { clock } from "../format";
import { to, toCollection } from "../route";

const none: ReadonlySet<string> = new Set();

/** The lines that a version has and the one before it had not. */
export function fresh(before: string | undefined, now: string): ReadonlySet<string> {
  if (before === undefined || before === now) return none;
  const old = new Set(before.split("\n"));
  return new Set(now.split("\n").filter((l) => !old.has(l)));
}

export function ObjectPage({ collection, name }: { collection: string; name: string }): VNode {
  useTitle(name);
  const { value: object, at, failure } = useView("object", `object ${collection} ${name}`, { case: "object", value: { collection, key: name } });
  const [whole, setWhole] = useState(false);
  const text = useMemo(() => (object ? (whole ? object.yaml : withoutManagedFields(object.yaml)) : ""), [object, whole]);
  const before = useRef<{ text: string; whole: boolean } | undefined>(undefined);
  const [changed, setChanged] = useState(none);
  useEffect(() => {
    if (!object) return;
    setChanged(before.current && before.current.whole === whole ? fresh(before.current.text, text) : none);
    before.current = { text, whole };
  }, [text]);
  const copy = () => {
    if (!navigator.clipboard) { say("The browser gives no access to the clipboard on a page without TLS. Select the text and copy it.", true); return; }
    navigator.clipboard.writeText(text).then(() => say("The YAML was copied."), () => say("The browser did not permit to copy. Select the text and copy it.", true));
  };
  return (
    <>
      <Head title={name} over={<><a href={to(["collections"])}>Collections</a> / <a href={toCollection(collection)}>{collection}</a></>}>
        {object && <>
          <label class="check"><input type="checkbox" checked={whole} onChange={(e) => setWhole(e.currentTarget.checked)} /> managedFields</label>
          <button type="button" onClick={copy}>Copy YAML</button>
        </>}
      </Head>
      <Fault failure={failure} at={at} />
      {object && !object.present && <p class="note warning" role="status"><strong>{object.yaml ? "The object was deleted." : "There is no such object."}</strong> {object.yaml ? "Its last version is shown." : "It appears here as soon as it is created."}</p>}
      {object?.quarantined && <p class="note failing" role="alert"><strong>The newest version could not be read.</strong> The one before it is shown.</p>}
      {object && <Facts of={[
        ["Resource version", <code>{object.resourceVersion}</code>],
        ["UID", <code>{object.uid}</code>],
        ["Last change seen", clock(ms(object.seenAt) ?? at ?? 0)],
        ["State", object.present ? <Badge tone="well">live</Badge> : <Badge tone="failing">{object.yaml ? "deleted" : "absent"}</Badge>],
      ]} />}
      {object ? object.yaml && <Yaml text={text} fresh={changed} /> : !failure && <Waiting what="the object" />}
    </>
  );
}
