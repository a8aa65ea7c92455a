import { client } from "./session";
import { KeyAction, KeyResultStatus, QueueAction } from "../gen/deltaplane/console/v1/console_pb";
import { ask } from "./ui/ask";
import { plural } from "./format";

interface Words {
  verb: string;
  done: string;
  text: string;
  danger?: boolean;
}

export const keyActions: Record<Exclude<KeyAction, KeyAction.UNSPECIFIED>, Words> = {
  [KeyAction.RETRY]: { verb: "Retry now", done: "waits now", text: "Delayed and dead keys become ready at once. The retries of a dead key start over." },
  [KeyAction.FRONT]: { verb: "Move to the front", done: "is in front", text: "The keys wait with the highest priority. It is an add: a key that is not queued is queued." },
  [KeyAction.RELEASE]: { verb: "Release", done: "was released", text: "The keys are taken from their workers, whose settlements are then answered LOST. Another worker may run them while the first still does.", danger: true },
  [KeyAction.DELETE]: { verb: "Delete", done: "was deleted", text: "The keys and everything kept with them are dropped. Keys that a worker holds stay. A controller may not look at these objects again until they change.", danger: true },
};

export const queueActions: Record<Exclude<QueueAction, QueueAction.UNSPECIFIED>, Words> = {
  [QueueAction.PAUSE]: { verb: "Pause", done: "is paused", text: "No more keys are handed out. Keys that are held are finished, and adds are still taken." },
  [QueueAction.RESUME]: { verb: "Resume", done: "hands out keys again", text: "Keys are handed out again." },
  [QueueAction.CLOSE]: { verb: "Close", done: "is closed", text: "Adds are refused from now on. What the queue holds is still worked off.", danger: true },
  [QueueAction.OPEN]: { verb: "Open", done: "takes adds again", text: "Adds are taken again." },
  [QueueAction.DELETE]: { verb: "Delete queue", done: "was deleted", text: "The queue is deleted with everything in it. This cannot be undone. It is refused while keys are leased.", danger: true },
};

const most = 1000;

/** Asks whether to do something with keys, does it, and says what came of it. */
export function askKeys(queue: string, keys: readonly string[], action: Exclude<KeyAction, KeyAction.UNSPECIFIED>, then?: () => void): void {
  const w = keyActions[action];
  const what = keys.length === 1 ? keys[0]! : plural(keys.length, "key");
  ask({
    title: `${w.verb}: ${what}?`, text: w.text, verb: w.verb, danger: w.danger ?? false,
    act: async () => {
      let done = 0, held = 0, unchanged = 0;
      for (let i = 0; i < keys.length; i += most) {
        const { results } = await client.actOnKeys({ queue, keys: keys.slice(i, i + most), action });
        for (const r of results) {
          if (r.status === KeyResultStatus.DONE) done++;
          else if (r.status === KeyResultStatus.HELD) held++;
          else unchanged++;
        }
      }
      then?.();
      return [
        done > 0 && (keys.length === 1 ? `${what} ${w.done}.` : `${w.verb}: done for ${plural(done, "key")}.`),
        held > 0 && `${plural(held, "key")} ${held === 1 ? "is" : "are"} held by a worker: nothing changed there.`,
        unchanged > 0 && `Nothing had to be done for ${plural(unchanged, "key")}.`,
      ].filter(Boolean).join(" ");
    },
  });
}

/** Asks whether to do something with a queue, and does it. */
export function askQueue(queue: string, action: Exclude<QueueAction, QueueAction.UNSPECIFIED>, then?: () => void): void {
  const w = queueActions[action];
  ask({
    title: `${w.verb}: ${queue}?`, text: w.text, verb: w.verb, danger: w.danger ?? false,
    ...(action === QueueAction.DELETE ? { type: queue } : {}),
    act: async () => {
      await client.actOnQueue({ queue, action });
      then?.();
      return `${queue} ${w.done}.`;
    },
  });
}
