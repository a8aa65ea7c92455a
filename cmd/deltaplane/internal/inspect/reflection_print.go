package inspect

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// printReflections prints reflections for people: a row each, then the errors, equal ones together,
// and the quarantined keys in full.
func printReflections(out io.Writer, list []*reflectorv1.Reflection) error {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "REFLECTION\tSTATE\tREVISION\tOBJECTS\tLEADER\tTERM\tLAG\tPENDING\tCOALESCED\tLISTS\tWATCHES\tQUARANTINED\tFORM")
	for _, r := range list {
		revision := cmp.Or(r.GetRevision().GetResourceVersion(), r.GetShadowRevision().GetResourceVersion())
		leader := r.GetLeader()
		if leader != "" && leader == r.GetHolder() {
			leader = "this"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%d\t%s\t%d\t%d\t%d\t%s\t%d\t%s\n", r.GetCollection(), show.ReflectionState(r), show.Dash(revision), r.GetObjects(),
			show.Printable(show.Dash(leader)), r.GetTerm(), r.GetLag().AsDuration().Round(10*time.Microsecond), r.GetPending(), r.GetCoalesced(),
			r.GetRelists(), watchesText(r), r.GetQuarantinedTotal(), show.Dash(formText(r.GetSpec())))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, f := range foldFaults(list) {
		fmt.Fprintf(out, "\n%s: %s%s\n", f.who(), show.Printable(f.first.GetLastError()), retryText(f.next))
	}
	for _, r := range list {
		for _, q := range r.GetQuarantined() {
			fmt.Fprintf(out, "\n%s: quarantined %s: %s\n", r.GetCollection(), show.Printable(cmp.Or(q.GetKey(), "(no key)")), show.Printable(q.GetReason()))
		}
	}
	return nil
}

// fault is what one or several reflections fail with.
type fault struct {
	first, next *reflectorv1.Reflection // the first of them, and that which tries again next
	names       []string
	count       int
}

// foldFaults are the faults of a list, those with one reason and cause together, in the order of
// their first reflections.
func foldFaults(list []*reflectorv1.Reflection) []*fault {
	const named = 3
	var out []*fault
	known := map[string]*fault{}
	for _, r := range list {
		if r.GetLastError() == "" {
			continue
		}
		key := r.GetReason() + "\x00" + reflector.Cause(r.GetCollection(), r.GetLastError())
		f := known[key]
		if f == nil {
			f = &fault{first: r, next: r}
			known[key] = f
			out = append(out, f)
		}
		if f.count++; len(f.names) < named {
			f.names = append(f.names, r.GetCollection())
		}
		if at := r.GetNextRetryAt(); at != nil && (f.next.GetNextRetryAt() == nil || at.AsTime().Before(f.next.GetNextRetryAt().AsTime())) {
			f.next = r
		}
	}
	return out
}

// who names the reflections of a fault.
func (f *fault) who() string {
	if f.count == 1 {
		return f.first.GetCollection()
	}
	return fmt.Sprintf("%d collections, %s", f.count, reflector.Names(f.names, f.count))
}

func watchesText(r *reflectorv1.Reflection) string {
	if r.GetShortWatches() > 0 {
		return fmt.Sprintf("%d (%d short)", r.GetWatches(), r.GetShortWatches())
	}
	return fmt.Sprint(r.GetWatches())
}

func retryText(r *reflectorv1.Reflection) string {
	if r.GetNextRetryAt() == nil {
		return ""
	}
	if wait := time.Until(r.GetNextRetryAt().AsTime()); wait > 0 {
		return "; tries again in " + show.ShortDuration(wait)
	}
	return "; tries again now"
}

// specText names a spec and its form on one line.
func specText(s *reflectorv1.ReflectionSpec) string {
	name := s.GetResource()
	if s.GetCluster() != "" {
		name = s.GetCluster() + "/" + name
	}
	if form := formText(s); form != "" {
		name += " (" + form + ")"
	}
	return show.Printable(name)
}

// fewText is the first of a list that may be long, and how many more there are.
func fewText(names []string) string {
	const few = 5
	text := strings.Join(names[:min(len(names), few)], " ")
	if more := len(names) - few; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// formText is what makes a spec differ from all objects in full; empty when nothing does.
func formText(s *reflectorv1.ReflectionSpec) string {
	var parts []string
	for _, p := range []struct{ name, value string }{
		{"namespace ", s.GetNamespace()},
		{"namespaces ", fewText(s.GetNamespaces())},
		{"labels ", s.GetLabelSelector()},
		{"fields ", s.GetFieldSelector()},
		{"without ", strings.Join(s.GetDropFields(), " ")},
		{"header labels ", strings.Join(s.GetLabels(), " ")},
		{"hints ", strings.Join(slices.Sorted(maps.Keys(s.GetHints())), " ")},
	} {
		if p.value != "" {
			parts = append(parts, p.name+p.value)
		}
	}
	for _, p := range []struct {
		on   bool
		text string
	}{{s.GetMetadataOnly(), "metadata only"}, {s.GetKeepManagedFields(), "with managedFields"}, {s.GetDropLastApplied(), "without last-applied"}} {
		if p.on {
			parts = append(parts, p.text)
		}
	}
	return show.Printable(strings.Join(parts, ", "))
}
