package cri_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/internal/criruntime"
)

func TestEndpointsThatAreNoneAreRefusedByName(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{
		"", "/run/containerd/containerd.sock", "unix:containerd.sock", "unix://containerd.sock", "unix:///", "unix:///run/", "tcp://127.0.0.1:1",
		"http:///x", "unix:///a?b=c", "unix:///a#b", "unix://user@/a", "\x00", "unix:///" + strings.Repeat("x", 120),
	} {
		_, err := cri.Dial(t.Context(), endpoint)
		if !errors.Is(err, cri.ErrEndpoint) || !strings.Contains(err.Error(), fmt.Sprintf("%q", endpoint)) {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
}

func FuzzDial(f *testing.F) {
	f.Add("unix:///run/containerd/containerd.sock")
	f.Add("unix:///a%20b")
	f.Fuzz(func(t *testing.T, endpoint string) {
		c, err := cri.Dial(t.Context(), endpoint)
		if err != nil {
			if !errors.Is(err, cri.ErrEndpoint) {
				t.Fatal(err)
			}
			return
		}
		if !strings.HasPrefix(endpoint, "unix:///") {
			t.Errorf("%q passes", endpoint)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// shortDir is a directory whose sockets have paths that sockets can have.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cri") //nolint:usetesting // t.TempDir is named after the test, too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestARuntimeMayComeLateAndComeBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "run time.sock")
	c, err := cri.Dial(t.Context(), "unix://"+strings.ReplaceAll(path, " ", "%20"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := c.Check(t.Context()); !cri.IsUnavailable(err) || !cri.IsLost(err) {
		t.Errorf("before the runtime is there: %v", err)
	}
	for round := range 3 {
		rt, err := criruntime.New(criruntime.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := rt.Listen(path); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for {
			v, err := c.Check(t.Context())
			if err == nil {
				if v.Name != criruntime.RuntimeName || v.API != "v1" {
					t.Errorf("version %+v", v)
				}
				break
			}
			if !cri.IsUnavailable(err) || time.Since(start) > 20*time.Second {
				t.Fatalf("round %d, %v after its start: %v", round, time.Since(start), err)
			}
			pause(t.Context(), 10*time.Millisecond)
		}
		if err := rt.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Check(t.Context()); !cri.IsUnavailable(err) {
			t.Errorf("after its end: %v", err)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// old is a server without the CRI, or with little of it.
type old struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	version *runtimeapi.VersionResponse
}

func (o old) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	if o.version == nil {
		return nil, status.Error(codes.Unimplemented, "unknown service runtime.v1.RuntimeService")
	}
	return o.version, nil
}

func (o old) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	r := &runtimeapi.ListContainersResponse{}
	for range 20 {
		r.Containers = append(r.Containers, &runtimeapi.Container{Id: strings.Repeat("x", 1<<20)})
	}
	return r, nil
}

func serve(t *testing.T, register func(*grpc.Server)) *cri.Client {
	t.Helper()
	path := filepath.Join(shortDir(t), "s.sock")
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.MaxSendMsgSize(64 << 20))
	register(s)
	done := make(chan error, 1)
	go func() { done <- s.Serve(lis) }()
	c, err := cri.Dial(t.Context(), "unix://"+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestWhatDoesNotServeV1IsSaidSo(t *testing.T) {
	t.Parallel()
	for name, register := range map[string]func(*grpc.Server){
		"no CRI at all": func(*grpc.Server) {},
		"no Version":    func(s *grpc.Server) { runtimeapi.RegisterRuntimeServiceServer(s, old{}) },
		"an incomplete one": func(s *grpc.Server) {
			runtimeapi.RegisterRuntimeServiceServer(s, old{version: &runtimeapi.VersionResponse{RuntimeName: "x"}})
		},
		"nothing in its body": func(s *grpc.Server) {
			runtimeapi.RegisterRuntimeServiceServer(s, old{version: &runtimeapi.VersionResponse{}})
		},
	} {
		c := serve(t, register)
		if _, err := c.Check(t.Context()); !errors.Is(err, cri.ErrVersion) {
			t.Errorf("%s: %v, want ErrVersion", name, err)
		}
	}
}

func TestAnswersOfTwentyMegabytesAreRead(t *testing.T) {
	t.Parallel()
	c := serve(t, func(s *grpc.Server) { runtimeapi.RegisterRuntimeServiceServer(s, old{}) })
	r, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil || len(r.GetContainers()) != 20 {
		t.Errorf("%d containers, %v", len(r.GetContainers()), err)
	}
}

func TestLimitsOfCalls(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		method  string
		request any
		want    time.Duration
	}{
		{"Version", &runtimeapi.VersionRequest{}, cri.ReadLimit},
		{"ListContainers", &runtimeapi.ListContainersRequest{}, cri.ReadLimit},
		{"ContainerStatus", &runtimeapi.ContainerStatusRequest{}, cri.ReadLimit},
		{"CreateContainer", &runtimeapi.CreateContainerRequest{}, 2 * time.Minute},
		{"RunPodSandbox", &runtimeapi.RunPodSandboxRequest{}, 4 * time.Minute},
		{"StopContainer", &runtimeapi.StopContainerRequest{Timeout: 30}, 2*time.Minute + 30*time.Second},
		{"StopContainer", &runtimeapi.StopContainerRequest{Timeout: -5}, 2 * time.Minute},
		{"StopContainer", &runtimeapi.StopContainerRequest{Timeout: 1 << 62}, 365*24*time.Hour + 2*time.Minute},
		{"ExecSync", &runtimeapi.ExecSyncRequest{Timeout: 5}, 2*time.Minute + 5*time.Second},
		{"ExecSync", &runtimeapi.ExecSyncRequest{}, 0},
		{"PullImage", &runtimeapi.PullImageRequest{}, 0},
	} {
		if got := cri.Limit("/runtime.v1.RuntimeService/"+tc.method, tc.request); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.method, got, tc.want)
		}
	}
}

func TestACallThatHangsEndsAtItsLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt, err := criruntime.New(criruntime.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := rt.Close(); err != nil {
				t.Error(err)
			}
		}()
		defer rt.Inject("ListContainers", criruntime.Fault{Hang: true})()
		var told atomic.Value
		c := cri.Observed(rt.Conn(), func(op string, took time.Duration, err error) {
			told.Store(fmt.Sprint(op, " ", took.Round(time.Second), " ", status.Code(err)))
		})
		_, err = c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
		if !cri.IsLost(err) {
			t.Errorf("%v", err)
		}
		if got := told.Load(); got != "list_containers 30s DeadlineExceeded" {
			t.Errorf("told of %q", got)
		}
	})
}

func TestKindsOfErrors(t *testing.T) {
	t.Parallel()
	wrap := func(c codes.Code) error { return fmt.Errorf("wrapped: %w", status.Error(c, "said the runtime")) }
	for name, got := range map[string]bool{
		"not found":            cri.IsNotFound(wrap(codes.NotFound)),
		"unavailable":          cri.IsUnavailable(wrap(codes.Unavailable)),
		"unimplemented":        cri.IsUnimplemented(wrap(codes.Unimplemented)),
		"lost when cancelled":  cri.IsLost(wrap(codes.Canceled)),
		"lost when late":       cri.IsLost(context.DeadlineExceeded),
		"not lost when told":   !cri.IsLost(wrap(codes.Unknown)),
		"nil is none":          !cri.IsNotFound(nil) && !cri.IsUnavailable(nil) && !cri.IsLost(nil) && !cri.IsUnimplemented(nil),
		"the runtime's words":  cri.Message(wrap(codes.Unknown)) == "said the runtime",
		"anybody's words":      cri.Message(errors.New("x")) == "x",
		"no words for nothing": cri.Message(nil) == "",
	} {
		if !got {
			t.Error(name)
		}
	}
}
