package main

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

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// findGHZ is where ghz is: in the folder where make puts tools, or on PATH.
func findGHZ() (string, error) {
	if root, err := repoRoot(); err == nil {
		path := filepath.Join(root, ".tmp", "bin", "ghz")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return exec.LookPath("ghz")
}

// ghzReads shows what ghz reaches with the index beside what it reaches with
// Health/Check. Its own client is the limit: the ratio tells more than the rates.
func ghzReads(ctx context.Context, b *bench, info indexServerInfo) error {
	path, err := findGHZ()
	if err != nil {
		b.leaveOut("ghz QPS", "ghz is not installed: make tools")
		return nil
	}
	b.version(ctx, "ghz", path, "--version")
	turn := func(name, method string, request proto.Message) side {
		return ghzTurn(name, path, info.Index, method, request)
	}
	t, err := interleave(ctx, b, b.plan("ghz", 2, 5, time.Second, 5*time.Second),
		turn("health", "grpc.health.v1.Health/Check", nil),
		turn("get", indexv1.IndexService_ServiceDesc.ServiceName+"/Get", getRequest(info.Keys[0])),
		turn("byindex", indexv1.IndexService_ServiceDesc.ServiceName+"/ByIndex", byIndexRequest(info.Nodes[0])),
	)
	if err != nil {
		return fmt.Errorf("ghz: %w", err)
	}
	b.add(compare("ghz, IndexService.Get, 5 KB", "calls/s", t.of("get", "rate"), "Health/Check", t.of("health", "rate"), nil).with("p99", "ms", t.of("get", "p99")))
	b.add(compare("ghz, IndexService.ByIndex, 30 hits, keys only", "calls/s", t.of("byindex", "rate"), "Health/Check", t.of("health", "rate"), nil).with("p99", "ms", t.of("byindex", "p99")))
	noteCut(b, "Get", t.of("get", "cut"))
	noteCut(b, "ByIndex", t.of("byindex", "cut"))
	return nil
}

// noteCut tells how many calls ghz has cut.
func noteCut(b *bench, what string, rounds []float64) {
	n := 0.0
	for _, cut := range rounds {
		n += cut
	}
	if n > 0 {
		b.note("ghz, %s: %.0f calls failed by a fault of the grpc-go in ghz, which takes what a server sends for more than it allowed", what, n)
	}
}

// ghzTurn is a side on which ghz calls one method.
func ghzTurn(name, path, addr, method string, request proto.Message) side {
	return side{name, func(ctx context.Context, d time.Duration) (map[string]float64, error) {
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
		"-c", strconv.Itoa(readsInFlight), "--connections", "4", "-z", d.String(), "--duration-stop", "wait", "-O", "json", addr).Output()
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
