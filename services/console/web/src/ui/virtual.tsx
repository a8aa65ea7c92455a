import { Component, type ComponentChildren, type VNode } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";

/**
 * A column of a list. Width is a track of a CSS grid. Columns of rank 3 are left out where the list is
 * narrower than a desk's screen, those of rank 2 where it is as narrow as a telephone's.
 */
export interface Column<Row> {
  name: string;
  width: string;
  rank?: 1 | 2 | 3;
  right?: boolean;
  cell: (row: Row) => ComponentChildren;
}

interface Props<Row> {
  label: string;
  columns: Column<Row>[];
  /** How many rows there are, of which not all need to have arrived. */
  total: number;
  /** The row at a place, if it has arrived. */
  at: (index: number) => Row | undefined;
  id: (row: Row) => string;
  open?: (row: Row) => void;
  /** What the space bar does with a row. */
  toggle?: (row: Row) => void;
  empty: ComponentChildren;
  /** Called with the rows that are in view, and some around them. */
  onRange?: (first: number, count: number) => void;
  /** Draws rows again that are the same objects: changes with what cells show besides their row. */
  mark?: unknown;
}

export const rowHeight = 28;
const spare = 12;

/**
 * A list that has only the rows in view in the document, so that 100,000 of them cost what 40 cost.
 * It is a grid with one stop for the Tab key: arrows, Page, Home and End move, Enter opens.
 */
export function VirtualList<Row extends object>(props: Props<Row>): VNode {
  const { total, columns } = props;
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ first: 0, height: 600 });
  const [active, setActive] = useState({ index: -1, id: "" });
  const name = useId();

  useLayoutEffect(() => {
    const el = box.current!;
    const measure = () => {
      const first = Math.max(0, Math.floor(el.scrollTop / rowHeight) - spare);
      const height = el.clientHeight;
      setView((v) => (v.first === first && v.height === height ? v : { first, height }));
    };
    measure();
    el.addEventListener("scroll", measure, { passive: true });
    const sizes = new ResizeObserver(measure);
    sizes.observe(el);
    return () => { el.removeEventListener("scroll", measure); sizes.disconnect(); };
  }, []);

  const count = Math.ceil(view.height / rowHeight) + 2 * spare;
  const first = Math.max(0, Math.min(view.first, total - count));
  const last = Math.min(total, first + count);
  useEffect(() => { props.onRange?.(first, count); }, [first, count]);

  // A row keeps the mark when others come before it, as long as it is in view.
  let at = active.index;
  const marked = at >= 0 ? props.at(at) : undefined;
  if (at >= 0 && (!marked || props.id(marked) !== active.id)) {
    for (let i = first; i < last; i++) {
      const row = props.at(i);
      if (row && props.id(row) === active.id) { at = i; break; }
    }
  }
  const move = (to: number) => {
    const next = Math.max(0, Math.min(total - 1, to));
    const row = props.at(next);
    setActive({ index: next, id: row ? props.id(row) : "" });
    const el = box.current!;
    const top = next * rowHeight;
    if (top < el.scrollTop) el.scrollTop = top;
    else if (top + 2 * rowHeight > el.scrollTop + el.clientHeight) el.scrollTop = top + 2 * rowHeight - el.clientHeight;
  };
  const key = (e: KeyboardEvent) => {
    if (e.target !== e.currentTarget || e.ctrlKey || e.metaKey || e.altKey) return;
    const page = Math.max(1, Math.floor(view.height / rowHeight) - 2);
    const steps: Record<string, number> = {
      ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: total - 1,
    };
    const step = steps[e.key];
    const row = at >= 0 ? props.at(at) : undefined;
    if (step !== undefined && total > 0) { e.preventDefault(); move(step); }
    else if (e.key === "Enter" && row && props.open) { e.preventDefault(); props.open(row); }
    else if (e.key === " " && row && props.toggle) { e.preventDefault(); props.toggle(row); }
  };
  const tracks = (rank: number) => columns.filter((c) => (c.rank ?? 1) <= rank).map((c) => c.width).join(" ");
  const rows: VNode[] = [];
  for (let i = first; i < last; i++) {
    const row = props.at(i);
    rows.push(
      <Line
        key={row ? props.id(row) : `#${i}`} id={`${name}-${i}`} index={i} row={row} columns={columns} active={i === at} mark={props.mark}
        opens={props.open !== undefined}
        click={(e) => {
          if (!row) return;
          setActive({ index: i, id: props.id(row) });
          if (!(e.target as Element).closest("a,button,input,label")) props.open?.(row);
        }}
      />,
    );
  }
  return (
    <div class="vbox">
      <div
        class="vlist" role="grid" aria-label={props.label} aria-rowcount={total + 1} aria-colcount={columns.length}
        tabIndex={0} ref={box} onKeyDown={key}
        // Set through the object model, which the content security policy permits.
        style={{ "--tracks1": tracks(1), "--tracks2": tracks(2), "--tracks3": tracks(3), "--rows": Math.max(3, total) }}
        {...(at >= first && at < last ? { "aria-activedescendant": `${name}-${at}` } : {})}
      >
        <div class="vhead" role="rowgroup">
          <div class="vrow" role="row" aria-rowindex={1}>
            {columns.map((c, i) => <span key={c.name} role="columnheader" aria-colindex={i + 1} class={cellClass(c)}>{c.name}</span>)}
          </div>
        </div>
        <div class="vbody" role="rowgroup" style={{ height: `${Math.max(1, total) * rowHeight}px` }}>
          {total === 0 ? <div class="vrow vempty" role="row" aria-rowindex={2}><span role="gridcell">{props.empty}</span></div> : rows}
        </div>
      </div>
    </div>
  );
}

interface LineProps<Row> {
  id: string;
  index: number;
  row: Row | undefined;
  columns: Column<Row>[];
  active: boolean;
  opens: boolean;
  mark: unknown;
  click: (e: MouseEvent) => void;
}

/** One row. It is drawn again only when something of it changed. */
class Line<Row> extends Component<LineProps<Row>> {
  override shouldComponentUpdate(next: LineProps<Row>): boolean {
    const p = this.props;
    return p.row !== next.row || p.index !== next.index || p.active !== next.active || p.columns !== next.columns || p.mark !== next.mark;
  }

  override render({ id, index, row, columns, active, opens, click }: LineProps<Row>): VNode {
    return (
      <div
        id={id} role="row" aria-rowindex={index + 2} aria-selected={active} onClick={click}
        style={{ transform: `translateY(${index * rowHeight}px)` }}
        class={"vrow" + (active ? " active" : "") + (opens ? " opens" : "") + (row ? "" : " pending")}
      >
        {columns.map((c, j) => (
          <span key={c.name} role="gridcell" aria-colindex={j + 1} class={cellClass(c)}>{row ? c.cell(row) : j === 0 ? "…" : ""}</span>
        ))}
      </div>
    );
  }
}

function cellClass<Row>(c: Column<Row>): string {
  return `vcell r${c.rank ?? 1}` + (c.right ? " num" : "");
}
