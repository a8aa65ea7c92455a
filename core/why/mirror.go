package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

// barrier is why the index has not what the key must see; nil where it has, or nobody can tell.
func (f *Facts) barrier() *finding {
	if _, silent := f.silence(PartIndex); silent || f.Collections == nil {
		if why, _ := f.silence(PartIndex); len(f.Item.Barrier) > 0 && f.gaveBack() {
			return &finding{IndexSilent, "the key waits for an index that has reached its barrier, and the index service did not answer: " + why, "make the index service reachable"}
		}
		return nil
	}
	for _, m := range f.Item.Barrier {
		c := f.collection(m.Collection)
		if c == nil {
			return &finding{
				NotMirrored, fmt.Sprintf("the key must see %s at %s, and the index has no such collection: nobody mirrors it", m.Collection, m.RV),
				fmt.Sprintf(`mirror it with "deltaplane reflection add %s", or have its controller read it elsewhere`, resource(m.Collection)),
			}
		}
		if want := (delta.Revision{Epoch: m.Epoch, RV: m.RV}); !c.Synced || want.Compare(c.Revision) > 0 {
			return f.behind(c, fmt.Sprintf("the key must see %s at %s, and the index is at %s", c.Name, m.RV, cmp.Or(c.Revision.RV, "nothing")), want)
		}
	}
	return nil
}

// behind is why a collection of the index has not come to a revision.
func (f *Facts) behind(c *Collection, what string, want delta.Revision) *finding {
	r := f.reflection(c.Name)
	if still := f.still(c, r, what); still != nil {
		return still
	}
	switch {
	case r != nil && want.Compare(r.Revision) > 0:
		return &finding{MirrorFailing, fmt.Sprintf("%s because the reflector has read only up to %s from the API server", what, cmp.Or(r.Revision.RV, "nothing")), "see why its watch is slow with \"deltaplane status --reflections\""}
	case !c.Synced:
		return &finding{IndexUnsynced, what + " because it has not read the collection completely", "wait for its first read, or see its health for why it cannot"}
	}
	return &finding{IndexLagging, fmt.Sprintf("%s, %d records behind the end of the log", what, c.Lag), "give the index more CPU, or ask another replica of it"}
}

// still is why nothing new comes to a collection of the index; nil while something may.
func (f *Facts) still(c *Collection, r *Reflection, what string) *finding {
	_, noReflector := f.silence(PartReflector)
	switch {
	case r != nil && slices.Contains(logReasons, r.Reason):
		return &finding{LogDead, fmt.Sprintf("%s because the delta log does not take or give records (%s: %s)", what, r.Reason, r.LastError), "bring NATS and its JetStream back"}
	case c.Stale && noLog(c.LastError):
		return &finding{LogDead, fmt.Sprintf("%s because the delta log cannot be reached (%s)", what, c.LastError), "bring NATS and its JetStream back"}
	case !c.Frozen.IsZero():
		why := "behind a hole in the log"
		if c.LastError != "" {
			why = "(" + c.LastError + ")"
		}
		return &finding{IndexFrozen, fmt.Sprintf("%s, where it has stood still since %s %s", what, clock(c.Frozen), why), "ask another replica of the index, or upgrade or restart this one"}
	case r != nil && !r.Well && r.Reason != "":
		return &finding{MirrorFailing, fmt.Sprintf("%s because the reflector cannot mirror it (%s: %s)", what, r.Reason, r.LastError), "mend what the reflector says; it tries again by itself"}
	case c.Stale && (noReflector || r == nil):
		heard := "was never heard"
		if !c.LiveAt.IsZero() {
			heard = fmt.Sprintf("was last heard %v ago", plain(f.Now.Sub(c.LiveAt)))
		}
		return &finding{ReflectorDead, fmt.Sprintf("%s because its reflector %s", what, heard), "start a reflector for the cluster"}
	}
	return nil
}

// logReasons are a reflector's reasons that are of the log.
var logReasons = []string{"LOG_FULL", "LOG_UNAVAILABLE", "LOG_LOST", "NO_JETSTREAM", "FOREIGN_LOG", "NEWER_LOG"}

// noLog says that an index's error is of its connection to the log.
func noLog(text string) bool {
	for _, sign := range []string{"nats:", "unavailable", "no servers", "no responders", "connection", "timeout", "deadline"} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}

// standstill is why changes of the queue's cluster do not come; nil while they do.
func (f *Facts) standstill() *finding {
	cluster, _, _ := strings.Cut(f.Queue, "/")
	var worst *finding
	for i := range f.Collections {
		c := &f.Collections[i]
		if !strings.HasPrefix(c.Name, cluster+"/") {
			continue
		}
		what := fmt.Sprintf("nothing is queued for the key, and changes of %s since %s have not come", c.Name, cmp.Or(c.Revision.RV, "its start"))
		if is := f.still(c, f.reflection(c.Name), what); is != nil && (worst == nil || is.cause == LogDead) {
			worst = is
		}
	}
	return worst
}

func (f *Facts) collection(name string) *Collection {
	for i := range f.Collections {
		if f.Collections[i].Name == name {
			return &f.Collections[i]
		}
	}
	return nil
}

func (f *Facts) reflection(name string) *Reflection {
	for i := range f.Reflections {
		if f.Reflections[i].Collection == name {
			return &f.Reflections[i]
		}
	}
	return nil
}

// resource is the part of a collection's name behind its cluster.
func resource(collection string) string {
	_, name, _ := strings.Cut(collection, "/")
	return cmp.Or(name, collection)
}

// met says whether the index has what a mark asks for; known is false where nobody can tell.
func (f *Facts) met(m workqueue.Mark) (is, known bool, at string) {
	c := f.collection(m.Collection)
	if c == nil {
		return false, f.Collections != nil, ""
	}
	return c.Synced && (delta.Revision{Epoch: m.Epoch, RV: m.RV}).Compare(c.Revision) <= 0, true, c.Revision.RV
}

// waitOf is how long from now until a time of the store.
func (f *Facts) waitOf(at time.Time) time.Duration { return max(at.Sub(f.StoreTime), 0) }
