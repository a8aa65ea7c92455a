package main

import "fmt"

// judge is the target in a full run; in a short one there are too few pods.
func (h *holders) judge(t *target) *target { return pick(h.b, nil, t) }

// add adds the rows of what the holders did.
func (h *holders) add(t table) {
	what := fmt.Sprintf("%d pods", h.rig.info.Objects)
	live := func(side, tier string, beside, besideName string, limit *target) {
		if len(t.of(side, "live")) == 0 || len(t.of(beside, "live")) == 0 {
			return
		}
		f := compare("live heap per pod, 5 indexes, "+what+", "+tier, "B", t.of(side, "live"), besideName, t.of(beside, "live"), h.judge(limit))
		f = f.with("RSS", "B", t.of(side, "rss")).with("beside", "B", t.of(beside, "rss"))
		f = f.with("heap objects", "", t.of(side, "objects")).with("beside", "", t.of(beside, "objects"))
		if stored := t.of(side, "stored"); len(stored) > 0 {
			f = f.with("payload as stored", "B", stored).with("own estimate", "B", t.of(side, "estimate"))
		}
		h.b.add(f)
	}
	const full, stripped = "client-go, whole objects", "client-go, stripped by a transform"
	live("raw", "raw tier", "informer", full, atMost("ratio", 1/2.5))
	live("raw", "raw tier", "stripped", stripped, nil)
	live("compact", "compact tier", "informer", full, atMost("ratio", 1./12))
	live("compact", "compact tier", "stripped", stripped, nil)

	sync := func(name, side, number string, limit *target) {
		if len(t.of(side, number)) == 0 {
			return
		}
		f := compare(name+" of "+what, "s", t.of(side, number), full, t.of("informer", "seconds"), h.judge(limit))
		f = f.with("CPU", "s", t.of(side, "cpu")).with("log's", "s", t.of(side, "far"))
		h.b.add(f.with("beside CPU", "s", t.of("informer", "cpu")).with("its server's", "s", t.of("informer", "far")))
	}
	sync("cold sync, raw tier,", "raw", "seconds", atMost("ours", 2))
	sync("cold sync, compact tier, until it can be read,", "compact", "seconds", nil)
	sync("cold sync, compact tier, compression finished,", "compact", "compacted", atMost("ours", 12))
	sync("warm restart from the snapshot file, raw tier,", "warm", "seconds", atMost("ours", 0.7))

	peak := func(side, tier string, limit *target) {
		if len(t.of(side, "peak")) == 0 {
			return
		}
		f := compare("peak RSS of the cold sync of "+what+", "+tier, "MB", t.of(side, "peak"), full, t.of("informer", "peak"), h.judge(limit))
		f = f.with("stripped", "MB", t.of("stripped", "peak"))
		if streamed := t.of("streamed", "peak"); len(streamed) > 0 {
			f = f.with("sent one by one", "MB", streamed)
		}
		h.b.add(f)
	}
	peak("raw", "raw tier", atMost("ratio", 1/2.5))
	peak("compact", "compact tier, compression included", atMost("ratio", 1./5))

	for _, side := range []string{"raw", "compact"} {
		if len(t.of(side, "gc")) == 0 {
			continue
		}
		f := compare("a full GC with "+what+", CPU, "+side+" tier", "ms", t.of(side, "gc"), full, t.of("informer", "gc"), h.judge(atMost("ratio", 1./20)))
		h.b.add(f.with("wall", "ms", t.of(side, "gc-wall")).with("beside", "ms", t.of("informer", "gc-wall")))
	}
	if len(t.of("streamed", "live")) > 0 {
		f := alone("client-go sent the pods one by one (watch-list), cold sync", "s", t.of("streamed", "seconds"), nil)
		h.b.add(f.with("CPU", "s", t.of("streamed", "cpu")).with("peak RSS", "MB", t.of("streamed", "peak")))
	}
}
