package criruntime

import (
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// EventSelectorHeader in a call's metadata is a label of sandboxes, "key=value":
// GetContainerEvents then tells of those alone, which the CRI itself cannot ask for.
// Agents of many nodes on one runtime would otherwise each receive everything.
const EventSelectorHeader = "deltaplane-event-selector"

// streamBuffer is how many events a slow reader may be behind before its stream ends.
const streamBuffer = 4096

type event struct {
	container, sandbox string
	kind               runtimeapi.ContainerEventType
}

// broadcast tells every open stream.
type broadcast struct {
	mu      sync.Mutex
	readers map[*reader]struct{}
}

type reader struct {
	key, value string // of a label; an empty key takes all
	events     chan *runtimeapi.ContainerEventResponse
	ended      chan struct{}
	err        error // why it ended; set before ended is closed
}

// GetContainerEvents streams what happens to containers and sandboxes, each event
// with the statuses of all of the pod. Errors: ResourceExhausted when the reader was
// too slow and has to look at everything, Unavailable when the runtime went down.
func (s *Server) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream runtimeapi.RuntimeService_GetContainerEventsServer) error {
	if s.cfg.NoEvents {
		return status.Error(codes.Unimplemented, "method GetContainerEvents not implemented")
	}
	r := &reader{events: make(chan *runtimeapi.ContainerEventResponse, streamBuffer), ended: make(chan struct{})}
	if given := metadata.ValueFromIncomingContext(stream.Context(), EventSelectorHeader); len(given) > 0 {
		key, value, ok := strings.Cut(given[0], "=")
		if !ok {
			return invalid("%s is %q: want key=value", EventSelectorHeader, given[0])
		}
		r.key, r.value = key, value
	}
	s.events.add(r)
	defer s.events.remove(r)
	// The headers tell the reader that from now on it misses nothing.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		select {
		case e := <-r.events:
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-r.ended:
			return r.err
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

// publish tells the streams of an event, with the statuses of now. The server's mutex is held.
func (s *Server) publish(e event) {
	box := s.state.sandboxes[e.sandbox]
	if box == nil {
		return
	}
	var made *runtimeapi.ContainerEventResponse
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	for r := range s.events.readers {
		if r.key != "" && box.item.Labels[r.key] != r.value {
			continue
		}
		if made == nil {
			made = &runtimeapi.ContainerEventResponse{
				ContainerId: e.container, ContainerEventType: e.kind, CreatedAt: time.Now().UnixNano(),
				PodSandboxStatus: box.status(), ContainersStatuses: box.containerStatuses(),
			}
		}
		select {
		case r.events <- made:
		default:
			s.events.end(r, status.Error(codes.ResourceExhausted, "criruntime: the reader of the event stream is too slow"))
		}
	}
}

func (b *broadcast) add(r *reader) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.readers == nil {
		b.readers = map[*reader]struct{}{}
	}
	b.readers[r] = struct{}{}
}

func (b *broadcast) remove(r *reader) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.readers, r)
}

// end ends one stream. The mutex is held.
func (b *broadcast) end(r *reader, err error) {
	r.err = err
	close(r.ended)
	delete(b.readers, r)
}

// close ends every stream.
func (b *broadcast) close(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for r := range b.readers {
		b.end(r, err)
	}
}

// BreakEvents ends every event stream with Unavailable, as a broken connection does.
func (s *Server) BreakEvents() {
	s.events.close(status.Error(codes.Unavailable, "criruntime: the event stream broke"))
}
