// Numbers, times and rates as they are shown everywhere: short, and of a width that does not jump.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 1234567 as 1,234,567. */
export function count(n: number | bigint): string {
  return grouped.format(n);
}

/** 1234567 as 1.23M: for places where the width is small. */
export function short(n: number): string {
  if (!Number.isFinite(n)) return "–";
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]] as const) {
    if (Math.abs(n) >= unit) {
      const by = letter === "k" ? 1e3 : unit;
      return (n / by).toPrecision(3).replace(/\.0+$/, "") + letter;
    }
  }
  return count(Math.round(n));
}

/** Events per second. */
export function rate(n: number | undefined): string {
  if (n === undefined || !Number.isFinite(n)) return "–";
  if (n === 0) return "0/s";
  if (n < 10) return n.toFixed(n < 0.095 ? 2 : 1) + "/s";
  return short(n) + "/s";
}

/** A length of time in seconds: 3 ms, 1.2 s, 4m 10s, 3h 5m, 2d 4h. */
export function span(seconds: number | undefined): string {
  if (seconds === undefined || !Number.isFinite(seconds)) return "–";
  const s = Math.abs(seconds);
  if (s === 0) return "0 s";
  if (s < 0.001) return Math.max(1, Math.round(s * 1e6)) + " µs";
  if (s < 1) return Math.round(s * 1e3) + " ms";
  if (s < 10) return s.toFixed(1) + " s";
  if (s < 60) return Math.floor(s) + " s";
  if (s < 3600) return `${Math.floor(s / 60)}m ${Math.floor(s % 60)}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h ${Math.floor((s % 3600) / 60)}m`;
  return `${Math.floor(s / 86400)}d ${Math.floor((s % 86400) / 3600)}h`;
}

/** An age in seconds as kubectl shows it: two digits or two units. */
export function age(seconds: number): string {
  const s = Math.max(0, Math.floor(seconds)), m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
  const two = (n: number, unit: string, rest: number, least: string) => n + unit + (rest > 0 ? rest + least : "");
  if (s < 120) return s + "s";
  if (m < 10) return two(m, "m", s % 60, "s");
  if (m < 180) return m + "m";
  if (h < 8) return two(h, "h", m % 60, "m");
  if (h < 48) return h + "h";
  if (d < 8) return two(d, "d", h % 24, "h");
  if (d < 730) return d + "d";
  return Math.floor(d / 365) + "y";
}

export function bytes(n: number): string {
  if (n < 1024) return n + " B";
  if (n < 1 << 20) return (n / 1024).toFixed(1) + " KiB";
  if (n < 1 << 30) return (n / (1 << 20)).toFixed(1) + " MiB";
  return (n / (1 << 30)).toFixed(2) + " GiB";
}

/** The time of day of an instant in milliseconds, with milliseconds where asked for. */
export function clock(ms: number, fine = false): string {
  const d = new Date(ms);
  const two = (n: number) => String(n).padStart(2, "0");
  const text = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  return fine ? text + "." + String(d.getMilliseconds()).padStart(3, "0") : text;
}

/** 1 key, 2 keys. */
export function plural(n: number, one: string, many = one + "s"): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}
