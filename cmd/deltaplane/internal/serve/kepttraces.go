package serve

import (
	"cmp"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/internal/telemetry/recent"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
)

// keptTraces shows the console the traces that the process keeps.
type keptTraces struct{ kept *recent.Store }

// List implements view.Traces.
func (k keptTraces) List(text string, failed bool, most int) (out []*consolev1.TraceSummary) {
	for _, t := range k.kept.List(recent.Filter{Text: text, Failed: failed, Limit: most}) {
		out = append(out, summaryOf(t))
	}
	return out
}

// Get implements view.Traces.
func (k keptTraces) Get(id string) *consolev1.Trace {
	t, ok := k.kept.Get(id)
	if !ok {
		return nil
	}
	out := &consolev1.Trace{Summary: summaryOf(t.Summary)}
	for _, s := range t.Spans {
		span := &consolev1.Span{
			Id: s.ID, Parent: s.Parent, Name: s.Name, Service: s.Service, Begin: timestamppb.New(s.Start), Duration: durationpb.New(s.End.Sub(s.Start)),
		}
		if s.Failed {
			span.Error = cmp.Or(s.Status, "failed")
		}
		for _, name := range slices.Sorted(maps.Keys(s.Attributes)) {
			span.Attributes = append(span.Attributes, &consolev1.Setting{Name: name, Value: s.Attributes[name]})
		}
		for _, l := range s.Links {
			if l.Kept {
				span.Links = append(span.Links, l.Trace)
			}
		}
		out.Spans = append(out.Spans, span)
	}
	return out
}

func summaryOf(t recent.Summary) *consolev1.TraceSummary {
	return &consolev1.TraceSummary{
		Id: t.ID, Name: t.Name, Begin: timestamppb.New(t.Start), Duration: durationpb.New(t.Duration),
		Spans: uint32(t.Spans), Failed: t.Errors > 0, Services: t.Services, //nolint:gosec // at most recent.MaxSpans
	}
}
