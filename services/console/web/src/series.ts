import { signal } from "@preact/signals";

const kept = 240;

/** The last samples of one figure, as charts want them: two arrays of the same length. */
export class Series {
  readonly times: number[] = [];
  readonly values: (number | null)[] = [];
  /** Grows with each sample: what draws it reads this to be drawn again. */
  readonly version = signal(0);

  constructor(readonly name: string) {}

  add(ms: number, value: number | undefined): void {
    this.times.push(ms / 1000);
    this.values.push(value === undefined || !Number.isFinite(value) ? null : value);
    if (this.times.length > kept) { this.times.shift(); this.values.shift(); }
    this.version.value++;
  }

  get last(): number | undefined {
    return this.values[this.values.length - 1] ?? undefined;
  }
}

/** Series by name. They outlive the page that shows them, so that returning to it shows the past too. */
export class SeriesSet {
  readonly #all = new Map<string, Series>();

  of(name: string): Series {
    let s = this.#all.get(name);
    if (!s) this.#all.set(name, (s = new Series(name)));
    return s;
  }
}
