package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// Target is a running Deltaplane and the cluster it serves.
type Target struct {
	Name string
	// Index, Queue and Reflector are addresses of the services.
	Index, Queue, Reflector string
	// API is the cluster's API server.
	API *API
	// Nodes says that the cluster's nodes are run by our agents.
	Nodes bool
	// Restart stops one service ("reflector", "indexer", "queue", "controllers", "nodes") and starts
	// it again.
	Restart func(t *testing.T, service string)
	// Kill ends everything with SIGKILL and starts it again; nil where that cannot be done.
	Kill func(t *testing.T)
	// Dial is how the services are called.
	Dial rpc.DialConfig
	// KillJobs is how many Jobs wait when it does; zero is 1,000.
	KillJobs int
}

func (x *Target) index(t *testing.T) indexv1.IndexServiceClient {
	return indexv1.NewIndexServiceClient(connect(t, x.Index, x.Dial))
}

func (x *Target) queues(t *testing.T) queuev1.QueueAdminServiceClient {
	return queuev1.NewQueueAdminServiceClient(connect(t, x.Queue, x.Dial))
}

func (x *Target) reflector(t *testing.T) reflectorv1.ReflectorServiceClient {
	return reflectorv1.NewReflectorServiceClient(connect(t, x.Reflector, x.Dial))
}

func connect(t *testing.T, address string, how rpc.DialConfig) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.Dial(address, how)
	if err != nil {
		t.Fatalf("dial %s: %v", address, err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// API is a Kubernetes API server reached over plain REST.
type API struct {
	Base   string
	Client *http.Client
}

// statusError is an answer other than success.
type statusError struct {
	code int
	body string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("API server answered %d: %s", e.code, e.body)
}

func isStatus(err error, code int) bool {
	s, ok := errors.AsType[*statusError](err)
	return ok && s.code == code
}

// do sends one request and decodes the answer into into, which may be nil.
func (a *API) do(ctx context.Context, method, path, contentType string, body, into any) error {
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		reader = bytes.NewReader(b)
	default:
		encoded, err := json.Marshal(b)
		if err != nil {
			return err
		}
		reader = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, a.Base+path, reader)
	if err != nil {
		return err
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	answer, err := a.Client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode >= 300 {
		return &statusError{answer.StatusCode, string(text[:min(len(text), 500)])}
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

func (a *API) get(ctx context.Context, path string, into any) error {
	return a.do(ctx, http.MethodGet, path, "", nil, into)
}

func (a *API) create(ctx context.Context, path string, object, into any) error {
	return a.do(ctx, http.MethodPost, path, "application/json", object, into)
}

func (a *API) merge(ctx context.Context, path string, patch any) error {
	return a.do(ctx, http.MethodPatch, path, "application/merge-patch+json", patch, nil)
}

func (a *API) delete(ctx context.Context, path, propagation string) error {
	return a.do(ctx, http.MethodDelete, path, "application/json", map[string]string{
		"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation,
	}, nil)
}

// eventually calls check until it returns nil, and fails with its last error when the time is over.
func eventually(t *testing.T, limit time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		if last == nil || ctx.Err() == nil { // the end of the time alone says nothing
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, limit, last)
		case <-tick.C:
		}
	}
}
