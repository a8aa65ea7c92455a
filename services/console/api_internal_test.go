package console

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/internal/explain"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
)

// away is a service that does not answer.
type away struct{ grpc.ClientConnInterface }

func (away) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return status.Error(codes.Unavailable, "away")
}

// connection takes what is written, keeps the deadlines and calls wrote.
type connection struct {
	*httptest.ResponseRecorder
	read, write []time.Time
	wrote       func()
}

func (c *connection) SetReadDeadline(t time.Time) error  { c.read = append(c.read, t); return nil }
func (c *connection) SetWriteDeadline(t time.Time) error { c.write = append(c.write, t); return nil }

func (c *connection) Write(b []byte) (int, error) {
	c.wrote()
	return c.ResponseRecorder.Write(b)
}

// newService is a console that is not run, before services that do not answer.
func newService(t *testing.T) *Service {
	t.Helper()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "console", LogOutput: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	part := explain.Part{Conn: away{}}
	s, err := New(Config{Admin: telemetry.AdminConfig{Listen: "off"}}, Deps{Reflector: part, Index: part, Queue: part}, tel)
	if err != nil {
		t.Fatal(err)
	}
	s.life = t.Context()
	return s
}

// opened has a page open its stream, whose reader leaves with the first message.
func opened(t *testing.T, s *Service) *connection {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1"+consolev1.ConsoleService_Open_FullMethodName, strings.NewReader("\x00\x00\x00\x00\x00"))
	r.Header.Set("Content-Type", "application/connect+proto")
	r.Header.Set("Connect-Protocol-Version", "1")
	w := &connection{ResponseRecorder: httptest.NewRecorder(), wrote: cancel}
	s.handler.ServeHTTP(w, r)
	return w
}

func TestAStreamThatItsReaderLeavesIsCountedAsCanceled(t *testing.T) {
	t.Parallel()
	s := newService(t)
	opened(t, s)
	var m dto.Metric
	if err := s.metrics.calls.WithLabelValues("Open", "canceled").Write(&m); err != nil || m.GetCounter().GetValue() != 1 {
		t.Errorf("%v streams are counted as canceled, want 1: %v", m.GetCounter().GetValue(), err)
	}
}

func TestAStreamOutlastsTheBoundsOfARequest(t *testing.T) {
	t.Parallel()
	s := newService(t)
	if server := s.server(); server.ReadTimeout <= 0 || server.WriteTimeout <= 0 {
		t.Errorf("a request may take %v and its answer %v, want bounds", server.ReadTimeout, server.WriteTimeout)
	}
	w := opened(t, s)
	if len(w.read) != 1 || !w.read[0].IsZero() {
		t.Errorf("the deadlines of what comes are %v, want that there is none", w.read)
	}
	if len(w.write) != 1 || time.Until(w.write[0]) > stalled {
		t.Errorf("the deadlines of what is taken are %v, want one within %v", w.write, stalled)
	}
}
