package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// EventAnswer is an Event of an object.
type EventAnswer struct {
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Count   int32     `json:"count"`
	Last    time.Time `json:"last"`
	From    string    `json:"from,omitempty"`
	Message string    `json:"message"`
}

// EventFields are the fields of an Event that ReadEvent reads, and those that name its object.
var EventFields = []string{
	"involvedObject", "type", "reason", "message", "count", "lastTimestamp", "eventTime", "source.component", "reportingComponent", "series",
}

// ReadEvent reads an Event.
func ReadEvent(payload []byte) (EventAnswer, error) {
	var e corev1.Event
	if err := json.Unmarshal(payload, &e); err != nil {
		return EventAnswer{}, fmt.Errorf("event: %w", err)
	}
	last, count := e.LastTimestamp.Time, max(e.Count, 1)
	if last.IsZero() {
		last = e.EventTime.Time
	}
	if s := e.Series; s != nil {
		last, count = s.LastObservedTime.Time, s.Count
	}
	return EventAnswer{Type: e.Type, Reason: e.Reason, Count: count, Last: last, From: cmp.Or(e.Source.Component, e.ReportingController), Message: e.Message}, nil
}

// About reports whether an Event's object is the one of a kind, name and UID. Kubelets name a node
// by its name in place of its UID.
func About(o corev1.ObjectReference, kind, name, uid string) bool {
	if string(o.UID) == uid {
		return uid != ""
	}
	return kind == "Node" && o.Kind == kind && o.Name == name && string(o.UID) == name
}

// EventNamespace is the namespace that has the Events of an object of a namespace.
func EventNamespace(namespace string) string { return cmp.Or(namespace, "default") }

// SortEvents puts the newest last.
func SortEvents(all []EventAnswer) {
	slices.SortStableFunc(all, func(x, y EventAnswer) int { return x.Last.Compare(y.Last) })
}

// Events are the API server's about an object, the newest last.
func Events(ctx context.Context, flags *cli.KubeFlags, namespace, name, kind, uid string) ([]EventAnswer, error) {
	kc, err := flags.Load()
	if err != nil {
		return []EventAnswer{}, err
	}
	defer kc.Close()
	selector := "involvedObject.uid=" + uid
	if kind == "Node" {
		selector = "involvedObject.kind=Node,involvedObject.name=" + name
	}
	page, err := kc.List(ctx, kube.Resource{Version: "v1", Name: "events", Kind: "Event", Namespaced: true}, kube.ListOptions{Scope: kube.Scope{
		Namespace: EventNamespace(namespace), FieldSelector: selector,
	}})
	if err != nil {
		return []EventAnswer{}, err
	}
	out := make([]EventAnswer, 0, len(page.Items))
	for _, raw := range page.Items {
		var about struct{ InvolvedObject corev1.ObjectReference }
		if err := json.Unmarshal(raw, &about); err != nil {
			return []EventAnswer{}, fmt.Errorf("event: %w", err)
		}
		if !About(about.InvolvedObject, kind, name, uid) { // a server may not know the selector
			continue
		}
		e, err := ReadEvent(raw)
		if err != nil {
			return []EventAnswer{}, err
		}
		out = append(out, e)
	}
	SortEvents(out)
	return out, nil
}

// PrintEvents prints Events for people, or why there are none to show.
func PrintEvents(t io.Writer, all []EventAnswer, unknown string) {
	switch {
	case unknown != "":
		fmt.Fprintf(t, "\nEvents are not known: %s\n", unknown)
	case len(all) > 0:
		fmt.Fprintln(t, "\nEVENT\tREASON\tTIMES\tLAST\tFROM\tMESSAGE")
	}
	for _, e := range all {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\n", show.Printable(e.Type), show.Printable(e.Reason), e.Count, ago(e.Last), show.Printable(show.Dash(e.From)), show.Printable(e.Message))
	}
}
