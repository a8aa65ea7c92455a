package index

import (
	"fmt"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
)

// judge is the target in a full run; in a short one there are too few pods.
func (h *holders) judge(t *harness.Target) *harness.Target { return harness.Pick(h.b, nil, t) }

// add adds the rows of what the holders did.
func (h *holders) add(t harness.Table) {
	what := fmt.Sprintf("%d pods", h.rig.info.Objects)
	live := func(side, tier string, beside, besideName string, limit *harness.Target) {
		if len(t.Of(side, "live")) == 0 || len(t.Of(beside, "live")) == 0 {
			return
		}
		f := harness.Compare("live heap per pod, 5 indexes, "+what+", "+tier, "B", t.Of(side, "live"), besideName, t.Of(beside, "live"), h.judge(limit))
		f = f.With("RSS", "B", t.Of(side, "rss")).With("beside", "B", t.Of(beside, "rss"))
		f = f.With("heap objects", "", t.Of(side, "objects")).With("beside", "", t.Of(beside, "objects"))
		if stored := t.Of(side, "stored"); len(stored) > 0 {
			f = f.With("payload as stored", "B", stored).With("own estimate", "B", t.Of(side, "estimate"))
		}
		h.b.Add(f)
	}
	const full, stripped = "client-go, whole objects", "client-go, stripped by a transform"
	live("raw", "raw tier", "informer", full, harness.AtMost("ratio", 1/2.5))
	live("raw", "raw tier", "stripped", stripped, nil)
	live("compact", "compact tier", "informer", full, harness.AtMost("ratio", 1./12))
	live("compact", "compact tier", "stripped", stripped, nil)

	sync := func(name, side, number string, limit *harness.Target) {
		if len(t.Of(side, number)) == 0 {
			return
		}
		f := harness.Compare(name+" of "+what, "s", t.Of(side, number), full, t.Of("informer", "seconds"), h.judge(limit))
		f = f.With("CPU", "s", t.Of(side, "cpu")).With("log's", "s", t.Of(side, "far"))
		h.b.Add(f.With("beside CPU", "s", t.Of("informer", "cpu")).With("its server's", "s", t.Of("informer", "far")))
	}
	sync("cold sync, raw tier,", "raw", "seconds", harness.AtMost("ours", 2))
	sync("cold sync, compact tier, until it can be read,", "compact", "seconds", nil)
	sync("cold sync, compact tier, compression finished,", "compact", "compacted", harness.AtMost("ours", 12))
	sync("warm restart from the snapshot file, raw tier,", "warm", "seconds", harness.AtMost("ours", 0.7))

	peak := func(side, tier string, limit *harness.Target) {
		if len(t.Of(side, "peak")) == 0 {
			return
		}
		f := harness.Compare("peak RSS of the cold sync of "+what+", "+tier, "MB", t.Of(side, "peak"), full, t.Of("informer", "peak"), h.judge(limit))
		f = f.With("stripped", "MB", t.Of("stripped", "peak"))
		if streamed := t.Of("streamed", "peak"); len(streamed) > 0 {
			f = f.With("sent one by one", "MB", streamed)
		}
		h.b.Add(f)
	}
	peak("raw", "raw tier", harness.AtMost("ratio", 1/2.5))
	peak("compact", "compact tier, compression included", harness.AtMost("ratio", 1./5))

	for _, side := range []string{"raw", "compact"} {
		if len(t.Of(side, "gc")) == 0 {
			continue
		}
		f := harness.Compare("a full GC with "+what+", CPU, "+side+" tier", "ms", t.Of(side, "gc"), full, t.Of("informer", "gc"), h.judge(harness.AtMost("ratio", 1./20)))
		h.b.Add(f.With("wall", "ms", t.Of(side, "gc-wall")).With("beside", "ms", t.Of("informer", "gc-wall")))
	}
	if len(t.Of("streamed", "live")) > 0 {
		f := harness.Alone("client-go sent the pods one by one (watch-list), cold sync", "s", t.Of("streamed", "seconds"), nil)
		h.b.Add(f.With("CPU", "s", t.Of("streamed", "cpu")).With("peak RSS", "MB", t.Of("streamed", "peak")))
	}
}
