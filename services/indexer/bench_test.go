package indexer_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// serveEnv makes the test binary a server in a process of its own, so that its
// CPU can be distinguished from the client's.
const serveEnv = "DELTAPLANE_BENCH_SERVE"

const echoMethod = "/bench.Echo/Echo"

// TestServeForBenchmarks is the child of BenchmarkServerCPU and skips otherwise.
func TestServeForBenchmarks(t *testing.T) {
	t.Parallel()
	switch os.Getenv(serveEnv) {
	case "echo":
		tel, err := telemetry.Setup(t.Context(), telemetry.Config{LogOutput: io.Discard})
		if err != nil {
			t.Fatal(err)
		}
		srv, err := rpc.NewServer(rpc.ServerConfig{}, rpc.Options{Log: tel.Log, Registry: tel.Registry, Tracer: tel.Tracer})
		if err != nil {
			t.Fatal(err)
		}
		srv.RegisterService(&grpc.ServiceDesc{ServiceName: "bench.Echo", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
			MethodName: "Echo",
			Handler: func(_ any, ctx context.Context, dec func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
				req := &emptypb.Empty{}
				if err := dec(req); err != nil {
					return nil, err
				}
				return i(ctx, req, &grpc.UnaryServerInfo{FullMethod: echoMethod}, func(context.Context, any) (any, error) { return &emptypb.Empty{}, nil })
			},
		}}}, struct{}{})
		lis, err := rpc.Listen(rpc.ServerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		serveUntilStdinCloses(t, lis, func(ctx context.Context) error { return srv.Serve(ctx, lis) })
	case "index":
		w := newWorld(t)
		var records []delta.Record
		for i := range 10_000 {
			records = append(records, pod(fmt.Sprintf("ns-%d/pod-%05d", i%20, i), options{node: fmt.Sprint("node-", i%333), labels: fmt.Sprintf("app=a%d,tier=web", i%50), pad: 4500}))
		}
		w.start(t, records...)
		r := w.index(t, nil)
		w.caughtUp(t, r)
		fmt.Println("listening", r.addr)
		_, _ = io.Copy(io.Discard, os.Stdin)
	default:
		t.Skip("only for BenchmarkServerCPU")
	}
}

func serveUntilStdinCloses(t *testing.T, lis net.Listener, serve func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	fmt.Println("listening", lis.Addr())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); cancel() }()
	if err := serve(ctx); err != nil {
		t.Fatal(err)
	}
}

// child starts this binary as a server.
func child(b *testing.B, kind string) (addr string, cpu func() time.Duration) {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestServeForBenchmarks$", "-test.timeout=0")
	cmd.Env = append(os.Environ(), serveEnv+"="+kind)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "listening "); ok {
			go func() {
				for lines.Scan() { // what the child prints at its end
				}
			}()
			return rest, func() time.Duration { return cpuTime(b, cmd.Process.Pid) }
		}
	}
	b.Fatalf("the %s server did not start", kind)
	return "", nil
}

// cpuTime is what a process has used, user and system.
func cpuTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Skip("needs /proc")
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// BenchmarkServerCPU compares the server CPU of a call with an empty echo's on
// the same server options (figure of the slice: at most 1.8).
func BenchmarkServerCPU(b *testing.B) {
	echoAddr, echoCPU := child(b, "echo")
	indexAddr, indexCPU := child(b, "index")
	dial := func(addr string) *grpc.ClientConn {
		conn, err := rpc.Dial(addr, rpc.DialConfig{})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	echo, index := dial(echoAddr), indexv1.NewIndexServiceClient(dial(indexAddr))
	measure := func(cpu func() time.Duration, call func(context.Context) error) time.Duration {
		var wg sync.WaitGroup
		before := cpu()
		const workers, each = 16, 1500
		for range workers {
			wg.Go(func() {
				for range each {
					if err := call(b.Context()); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		return (cpu() - before) / (workers * each)
	}
	calls := []struct {
		name string
		call func(context.Context) error
	}{
		{"Get", func(ctx context.Context) error {
			_, err := index.Get(ctx, &indexv1.GetRequest{Collection: podsName, Key: "ns-7/pod-00007"})
			return err
		}},
		{"GetKeys", func(ctx context.Context) error {
			_, err := index.Get(ctx, &indexv1.GetRequest{Collection: podsName, Key: "ns-7/pod-00007", View: indexv1.View_VIEW_KEYS})
			return err
		}},
		{"ByIndex30Keys", func(ctx context.Context) error {
			_, err := index.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: podsName, Index: "node", Values: []string{"node-7"}, View: indexv1.View_VIEW_KEYS})
			return err
		}},
		{"ByIndex30x5KB", func(ctx context.Context) error {
			_, err := index.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: podsName, Index: "node", Values: []string{"node-7"}})
			return err
		}},
	}
	ping := func(ctx context.Context) error {
		return echo.Invoke(ctx, echoMethod, &emptypb.Empty{}, &emptypb.Empty{})
	}
	measure(echoCPU, ping)
	for _, c := range calls {
		b.Run(c.name, func(b *testing.B) {
			var ours, theirs time.Duration
			for b.Loop() { // interleaved, since the machine is shared
				theirs += measure(echoCPU, ping)
				ours += measure(indexCPU, c.call)
			}
			b.ReportMetric(float64(ours)/float64(b.N)/1e3, "us-cpu/call")
			b.ReportMetric(float64(theirs)/float64(b.N)/1e3, "us-cpu/echo")
			b.ReportMetric(float64(ours)/float64(theirs), "x-echo")
		})
	}
}
