import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { signal } from "@preact/signals";
import uPlot from "uplot";
import type { Series } from "../series";

const dark = matchMedia("(prefers-color-scheme: dark)");
const scheme = signal(dark.matches);
dark.addEventListener("change", () => { scheme.value = dark.matches; });

interface Props {
  series: Series[];
  /** What the picture shows, for those who cannot see it. */
  label: string;
  height?: number;
  axes?: boolean;
  colors?: string[];
  format?: (n: number) => string;
}

/** A line over the last minutes. It follows the width of what it is in, and the colours of the page. */
export function Spark({ series, label, height = 34, axes = false, colors = ["--accent"], format }: Props): VNode {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const seen = scheme.value;
  const version = series.map((s) => s.version.value).join();
  const names = series.map((s) => s.name).join();
  useEffect(() => {
    const el = box.current!;
    const css = getComputedStyle(el);
    const colour = (name: string) => css.getPropertyValue(name).trim();
    const font = "11px " + css.fontFamily;
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font };
    plot.current = new uPlot({
      width: Math.max(40, el.clientWidth), height,
      cursor: axes ? { y: false, points: { size: 5 } } : { show: false },
      legend: { show: false },
      padding: axes ? [8, 4, 0, 0] : [2, 0, 2, 0],
      scales: { x: { time: true }, y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.1 : 1] } },
      axes: axes
        ? [{ ...axis, size: 22, space: 70 }, { ...axis, size: 52, space: 28, values: (_, v) => v.map((n) => (format ? format(n) : String(n))) }]
        : [{ show: false }, { show: false }],
      series: [{}, ...series.map((s, i) => {
        const c = colour(colors[i % colors.length]!);
        return { label: s.name, stroke: c, width: 1.5, points: { show: false }, ...(series.length === 1 ? { fill: c + "22" } : {}) };
      })],
    }, [[], ...series.map(() => [])] as uPlot.AlignedData, el);
    const sizes = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(40, el.clientWidth), height }));
    sizes.observe(el);
    return () => { sizes.disconnect(); plot.current?.destroy(); plot.current = undefined; };
  }, [seen, height, axes, names]);
  useEffect(() => {
    plot.current?.setData([series[0]?.times ?? [], ...series.map((s) => s.values)] as uPlot.AlignedData);
  }, [version, seen, height, axes, names]);
  return <div class="spark" role="img" aria-label={label} ref={box} style={{ height: `${height}px` }} />;
}
