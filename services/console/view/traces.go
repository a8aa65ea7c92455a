package view

import (
	"context"
	"fmt"
	"strings"

	"github.com/deltaplane/deltaplane/internal/rpc"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
)

const (
	// mostTraces is how many traces a list has.
	mostTraces = 200
	// maxText bounds what is searched for, in bytes.
	maxText = 256
)

// Traces shows the last traces.
func (h *Hub) Traces(_ context.Context, v *consolev1.TracesView, changed func()) (Reader, error) {
	if len(v.GetText()) > maxText {
		return nil, rpc.InvalidArgument("text", fmt.Sprintf("is longer than %d bytes", maxText))
	}
	return h.polled(fmt.Sprintf("traces\x00%s\x00%v", v.GetText(), v.GetFailed()), changed, func() *poll {
		return newPoll(func(context.Context) (*consolev1.OpenResponse, error) {
			out := &consolev1.Traces{Stored: h.traces != nil}
			if h.traces != nil {
				out.Traces = h.traces.List(v.GetText(), v.GetFailed(), mostTraces)
			}
			return &consolev1.OpenResponse{Content: &consolev1.OpenResponse_Traces{Traces: out}}, nil
		})
	})
}

// Trace shows one trace.
func (h *Hub) Trace(_ context.Context, v *consolev1.TraceView, changed func()) (Reader, error) {
	id := strings.ToLower(v.GetId())
	if id == "" || len(id) > maxText {
		return nil, rpc.InvalidArgument("id", "is not a trace's")
	}
	return h.polled("trace\x00"+id, changed, func() *poll {
		return newPoll(func(context.Context) (*consolev1.OpenResponse, error) {
			out := &consolev1.Trace{Stored: h.traces != nil}
			if h.traces != nil {
				if found := h.traces.Get(id); found != nil {
					out = found
					out.Stored = true
				}
			}
			return &consolev1.OpenResponse{Content: &consolev1.OpenResponse_Trace{Trace: out}}, nil
		})
	})
}
