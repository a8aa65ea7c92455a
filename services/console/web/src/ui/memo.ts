import { Component, createElement, type FunctionComponent, type VNode } from "preact";

/** A component that is drawn again only when one of its properties is another one. */
export function memo<P extends object>(inner: FunctionComponent<P>): FunctionComponent<P> {
  class Kept extends Component<P> {
    override shouldComponentUpdate(next: P): boolean {
      const old = this.props as Record<string, unknown>;
      const now = next as Record<string, unknown>;
      return Object.keys({ ...old, ...now }).some((k) => old[k] !== now[k]);
    }

    override render(): VNode {
      return createElement(inner, this.props as P) as VNode;
    }
  }
  return Kept as unknown as FunctionComponent<P>;
}
