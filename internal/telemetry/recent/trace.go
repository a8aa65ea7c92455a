package recent

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Summary is a trace in a list.
type Summary struct {
	// ID is the trace's id in hex.
	ID string `json:"id"`
	// Name is that of its first span, with what it is about: "event dev/pods.v1 ns/a".
	Name  string    `json:"name"`
	Start time.Time `json:"start"`
	// Duration is from the start of the first span to the end of the last.
	Duration time.Duration `json:"duration"`
	// Spans and Errors count the spans that are kept, and those of them that failed.
	Spans  int `json:"spans"`
	Errors int `json:"errors"`
	// Services are those whose spans are kept, sorted.
	Services []string `json:"services"`
	// Dropped counts the spans that were not kept because the trace has too many.
	Dropped int `json:"dropped,omitempty"`
}

// Trace is a whole trace.
type Trace struct {
	Summary
	// Spans are in the order of the tree: a parent before its children, children by their start.
	Spans []Span `json:"tree"`
	// LinkedFrom are the spans of other traces that have a link to this one.
	LinkedFrom []Link `json:"linked_from,omitempty"`
}

// Span is one step of a trace.
type Span struct {
	ID string `json:"id"`
	// Parent is empty for a root. It may name a span that is not kept.
	Parent string `json:"parent,omitempty"`
	// Depth is how many of its ancestors are kept.
	Depth      int               `json:"depth"`
	Service    string            `json:"service"`
	Name       string            `json:"name"`
	Start      time.Time         `json:"start"`
	End        time.Time         `json:"end"`
	Attributes map[string]string `json:"attributes,omitempty"`
	// Failed says that the span ended with an error, and Status what is known of it.
	Failed bool   `json:"failed,omitempty"`
	Status string `json:"status,omitempty"`
	Links  []Link `json:"links,omitempty"`
}

// Link leads to a span of another trace.
type Link struct {
	Trace string `json:"trace"`
	Span  string `json:"span"`
	// Kept says that the trace is kept here.
	Kept       bool              `json:"kept"`
	Attributes map[string]string `json:"attributes,omitempty"`
}

// Filter chooses traces. Its zero value chooses all.
type Filter struct {
	// Text is in the id, or in a name, a service, an attribute or a status of a span, in any case.
	Text string
	// Failed chooses traces with a span that failed.
	Failed bool
	// AtLeast is the least duration.
	AtLeast time.Duration
	// Limit bounds the answer; 0 for all.
	Limit int
}

// stored is a trace that is kept. Spans are in the order in which they ended.
type stored struct {
	id      string
	spans   []Span
	bytes   int
	dropped int
}

func (t *stored) summary() Summary {
	s := Summary{ID: t.id, Spans: len(t.spans), Dropped: t.dropped}
	var first *Span
	var end time.Time
	for i := range t.spans {
		span := &t.spans[i]
		if first == nil || span.Parent == "" && first.Parent != "" || (span.Parent == "") == (first.Parent == "") && span.Start.Before(first.Start) {
			first = span
		}
		if s.Start.IsZero() || span.Start.Before(s.Start) {
			s.Start = span.Start
		}
		if span.End.After(end) {
			end = span.End
		}
		if span.Failed {
			s.Errors++
		}
		if !slices.Contains(s.Services, span.Service) {
			s.Services = append(s.Services, span.Service)
		}
	}
	slices.Sort(s.Services)
	s.Duration = end.Sub(s.Start)
	s.Name = first.title()
	return s
}

// title is a span's name and what it is about.
func (s *Span) title() string {
	words := []string{s.Name}
	for _, key := range []string{"deltaplane.queue", "deltaplane.collection", "deltaplane.key"} {
		if v := s.Attributes[key]; v != "" {
			words = append(words, v)
		}
	}
	return strings.Join(words, " ")
}

func (t *stored) chosen(f Filter, s Summary) bool {
	if f.Failed && s.Errors == 0 || s.Duration < f.AtLeast {
		return false
	}
	text := strings.ToLower(f.Text)
	if text == "" || strings.Contains(t.id, text) {
		return true
	}
	return slices.ContainsFunc(t.spans, func(s Span) bool {
		if strings.Contains(strings.ToLower(s.Name+"\n"+s.Service+"\n"+s.Status), text) {
			return true
		}
		for _, v := range s.Attributes {
			if strings.Contains(strings.ToLower(v), text) {
				return true
			}
		}
		return false
	})
}

// tree is a copy of the spans in the order of the tree.
func (t *stored) tree() []Span {
	known := map[string]bool{}
	for i := range t.spans {
		known[t.spans[i].ID] = true
	}
	children := map[string][]Span{}
	for _, s := range t.spans {
		parent := s.Parent
		if !known[parent] || parent == s.ID {
			parent = ""
		}
		children[parent] = append(children[parent], s)
	}
	out := make([]Span, 0, len(t.spans))
	var below func(parent string, depth int)
	below = func(parent string, depth int) {
		list := children[parent]
		delete(children, parent) // each span is once in the tree, whatever the ids are
		slices.SortStableFunc(list, func(a, b Span) int { return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.ID, b.ID)) })
		for _, s := range list {
			s.Depth = depth
			out = append(out, s)
			below(s.ID, depth+1)
		}
	}
	below("", 0)
	for i := range t.spans { // spans that are each other's ancestors have no root
		below(t.spans[i].Parent, 0)
	}
	return out
}
