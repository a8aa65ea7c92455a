package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// FindGHZ is where ghz is: in the folder where make puts tools, or on PATH.
func FindGHZ() (string, error) {
	if root, err := repoRoot(); err == nil {
		path := filepath.Join(root, ".tmp", "bin", "ghz")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return exec.LookPath("ghz")
}

// GhzReads shows what ghz reaches with the index beside what it reaches with
// Health/Check. Its own client is the limit: the ratio tells more than the rates.
func GhzReads(ctx context.Context, b *harness.Bench, info IndexServerInfo) error {
	path, err := FindGHZ()
	if err != nil {
		b.LeaveOut("ghz QPS", "ghz is not installed: make tools")
		return nil
	}
	b.Version(ctx, "ghz", path, "--version")
	turn := func(name, method string, request proto.Message) harness.Side {
		return GhzTurn(name, path, info.Index, method, request)
	}
	t, err := harness.Interleave(ctx, b, b.Plan("ghz", 2, 5, time.Second, 5*time.Second),
		turn("health", "grpc.health.v1.Health/Check", nil),
		turn("get", indexv1.IndexService_ServiceDesc.ServiceName+"/Get", GetRequest(info.Keys[0])),
		turn("byindex", indexv1.IndexService_ServiceDesc.ServiceName+"/ByIndex", ByIndexRequest(info.Nodes[0])),
	)
	if err != nil {
		return fmt.Errorf("ghz: %w", err)
	}
	b.Add(harness.Compare("ghz, IndexService.Get, 5 KB", "calls/s", t.Of("get", "rate"), "Health/Check", t.Of("health", "rate"), nil).With("p99", "ms", t.Of("get", "p99")))
	b.Add(harness.Compare("ghz, IndexService.ByIndex, 30 hits, keys only", "calls/s", t.Of("byindex", "rate"), "Health/Check", t.Of("health", "rate"), nil).With("p99", "ms", t.Of("byindex", "p99")))
	NoteCut(b, "Get", t.Of("get", "cut"))
	NoteCut(b, "ByIndex", t.Of("byindex", "cut"))
	return nil
}

// NoteCut tells how many calls ghz has cut.
func NoteCut(b *harness.Bench, what string, rounds []float64) {
	n := 0.0
	for _, cut := range rounds {
		n += cut
	}
	if n > 0 {
		b.Note("ghz, %s: %.0f calls failed by a fault of the grpc-go in ghz, which takes what a server sends for more than it allowed", what, n)
	}
}

// GhzTurn is a side on which ghz calls one method.
func GhzTurn(name, path, addr, method string, request proto.Message) harness.Side {
	return harness.Side{Name: name, Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
		return runGHZ(ctx, path, addr, method, request, d)
	}}
}

// runGHZ calls one method, found by server reflection, over 4 connections with 64 calls in flight.
func runGHZ(ctx context.Context, path, addr, method string, request proto.Message, d time.Duration) (map[string]float64, error) {
	data := []byte("{}")
	if request != nil {
		var err error
		if data, err = protojson.Marshal(request); err != nil {
			return nil, err
		}
	}
	//nolint:gosec // the path was looked up by us
	out, err := exec.CommandContext(ctx, path, "--insecure", "--call", method, "-d", string(data),
		"-c", strconv.Itoa(load.ReadsInFlight), "--connections", "4", "-z", d.String(), "--duration-stop", "wait", "-O", "json", addr).Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return nil, fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return nil, err
	}
	var summary struct {
		RPS          float64          `json:"rps"`
		Errors       map[string]int   `json:"errorDistribution"`
		Latencies    []ghzPercentile  `json:"latencyDistribution"`
		StatusCounts map[string]int64 `json:"statusCodeDistribution"`
	}
	if err := json.Unmarshal(out, &summary); err != nil {
		return nil, err
	}
	numbers := map[string]float64{"rate": summary.RPS, "cut": float64(summary.Errors[ghzCut])}
	if delete(summary.Errors, ghzCut); len(summary.Errors) > 0 {
		return nil, fmt.Errorf("%s: calls failed: %v", method, summary.Errors)
	}
	for _, l := range summary.Latencies {
		numbers["p"+strconv.Itoa(l.Percentage)] = float64(l.Latency) / 1e6
	}
	return numbers, nil
}

// ghzCut is how a call fails now and then that ghz itself cuts: its grpc-go (1.34)
// raises the windows of the streams it has and then that of new ones, and takes
// what a server sends on a stream made in between for more than it allowed.
const ghzCut = "rpc error: code = Internal desc = unexpected EOF"

type ghzPercentile struct {
	Percentage int   `json:"percentage"`
	Latency    int64 `json:"latency"`
}
