package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// servedQueue is a `serve queue` of this process.
type servedQueue struct {
	t    *testing.T
	addr string
	conn *grpc.ClientConn
}

func serveQueue(t *testing.T, more ...string) *servedQueue {
	t.Helper()
	addr := embeddedtest.Ports(t, 1)[0]
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var out buffer
	done := make(chan int, 1)
	go func() {
		args := append([]string{"serve", "queue", "--listen", addr, "--admin-listen", "off", "--log-level", "warn"}, more...)
		done <- run(ctx, args, streams{In: strings.NewReader(""), Out: &out, Err: &out})
	}()
	conn, err := client.Dial(addr, client.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		cancel()
		if code := <-done; code != cli.ExitOK {
			t.Errorf("serve queue ended with %d:\n%s", code, &out)
		}
	})
	s := &servedQueue{t, addr, conn}
	until(t, func() bool {
		_, _, code := s.try("queue", "ls")
		return code == cli.ExitOK
	})
	return s
}

func (s *servedQueue) try(args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	return command(s.t.Context(), "", append(args, "--queue-url", s.addr)...)
}

func (s *servedQueue) must(args ...string) string {
	s.t.Helper()
	out, errs, code := s.try(args...)
	if code != cli.ExitOK {
		s.t.Fatalf("%v exited with %d: %s", args, code, errs)
	}
	return out
}

func (s *servedQueue) refuses(code int, says string, args ...string) {
	s.t.Helper()
	_, errs, got := s.try(args...)
	if got != code || !strings.Contains(errs, says) {
		s.t.Errorf("%v exited with %d, want %d, and said %q, want it to name %q", args, got, code, errs, says)
	}
}

func contains(t *testing.T, out string, all ...string) {
	t.Helper()
	for _, want := range all {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
}

func TestQueueConfigureChangesWhatItIsTold(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	out := s.must("queue", "configure", "dev/a", "--rate-limiter", "exponential:1s,1m+bucket:10,100@30s", "--max-retries", "7", "--partitions", "2",
		"--dispatch-limiter", "50,10", "--aging", "1m", "--backoff-initial", "2s", "--reserve-once")
	contains(t, out, "dev/a created", "exponential:1s,1m0s+bucket:10,100@30s", "50,10", "2s to 5m0s")
	out = s.must("queue", "configure", "dev/a", "--lease-duration", "40s") // the longest lease goes with it until it is set
	contains(t, out, "Lease duration:     40s", "Max lease:          40s")
	out = s.must("queue", "configure", "dev/a", "--max-lease", "2m")
	contains(t, out, "Lease duration:     40s", "Max lease:          2m0s")
	s.refuses(cli.ExitUsage, "config.max_lease: 10s is not between the lease duration, 40s, and 1 h", "queue", "configure", "dev/a", "--max-lease", "10s")
	contains(t, s.must("queue", "configure", "dev/a", "--max-deliveries", "5"), "Max deliveries:     5", "Max retries:        7")
	out = s.must("queue", "configure", "dev/a", "--dispatch-limiter", "none", "--absorb-delays", "--max-processing", "1h")
	contains(t, out, "dev/a configured", "exponential:1s,1m0s+bucket:10,100@30s", "Max processing:     1h0m0s", "Max retries:        7")

	file := filepath.Join(t.TempDir(), "queue.yaml")
	if err := os.WriteFile(file, []byte(s.must("queue", "configure", "dev/a", "-o", "yaml")), 0o600); err != nil {
		t.Fatal(err)
	}
	var config struct {
		MaxRetries   string `json:"max_retries"`
		Partitions   int    `json:"partitions"`
		AbsorbDelays bool   `json:"absorb_delays"`
	}
	text := s.must("queue", "configure", "dev/a", "-f", file, "--max-retries", "3", "-o", "json")
	if err := json.Unmarshal([]byte(text), &config); err != nil || config.MaxRetries != "3" || config.Partitions != 2 || !config.AbsorbDelays {
		t.Errorf("from the file and a flag: %+v, %v\n%s", config, err, text)
	}
	contains(t, s.must("queue", "ls"), "PARTITIONS", "dev/a", "open")

	s.refuses(cli.ExitUsage, "--rate-limiter", "queue", "configure", "dev/a", "--rate-limiter", "quick")
	s.refuses(cli.ExitUsage, "--durability", "queue", "configure", "dev/a", "--durability", "hope", "--rate-limiter", "bucket:x,1")
	s.refuses(cli.ExitUsage, "is the configuration of dev/a", "queue", "configure", "dev/b", "-f", file)
	s.refuses(cli.ExitUsage, "nonexistent", "queue", "configure", "dev/b", "-f", "/nonexistent")
	s.refuses(cli.ExitRefused, "PARTITIONS_FIXED", "queue", "configure", "dev/a", "--partitions", "3")
	s.refuses(cli.ExitUsage, "-2 is not between 0 (any number) and 2^30", "queue", "configure", "dev/a", "--max-retries", "-2")
	if err := os.WriteFile(file, []byte("max_retires: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.refuses(cli.ExitUsage, "max_retires", "queue", "configure", "dev/a", "-f", file)
	out, errs, code := command(t.Context(), `{"lease_duration":"45s"}`, "queue", "configure", "dev/c", "-f", "-", "--queue-url", s.addr)
	if code != cli.ExitOK || !strings.Contains(out, "45s") {
		t.Errorf("from standard input: %d %s%s", code, out, errs)
	}
}

func TestAnOperatorChangesKeysByTheCommandLine(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	s.must("queue", "configure", "dev/a", "--max-retries", "1", "--rate-limiter", "exponential:1h,1h")
	s.must("queue", "add", "dev/a", "one", "two", "three", "--after", "1h")
	out, errs, code := s.try("queue", "items", "dev/a", "--state", "delayed", "--limit", "2")
	if code != cli.ExitOK || strings.Count(out, "\n") != 3 {
		t.Fatalf("two items of three: %d\n%s%s", code, out, errs)
	}
	_, token, _ := strings.Cut(errs, "--page-token ")
	token, _, _ = strings.Cut(token, " ")
	if out := s.must("queue", "items", "dev/a", "--state", "delayed", "--page-token", token); strings.Count(out, "\n") != 2 {
		t.Errorf("the next page is\n%s", out)
	}
	if out, errs, code := s.try("queue", "retry", "dev/a", "one", "absent"); out != "one done\nabsent unchanged\n" || code != cli.ExitNotFound || !strings.Contains(errs, `"absent"`) {
		t.Errorf("retry: exit %d, printed %q, said %s", code, out, errs)
	}
	contains(t, s.must("queue", "describe", "dev/a", "one"), "State:", "ready", "EVENT", "added")
	if text := s.must("queue", "inspect", "dev/a", "one", "-o", "json"); !json.Valid([]byte(text)) || !strings.Contains(text, `"history"`) {
		t.Errorf("inspect -o json printed\n%s", text)
	}
	if out := s.must("queue", "delete", "dev/a", "--state", "delayed"); strings.Count(out, " done\n") != 2 {
		t.Errorf("delete printed %q", out)
	}
	if out := s.must("queue", "forget", "dev/a", "one"); out != "one forgotten\n" {
		t.Errorf("forget printed %q", out)
	}

	// A worker holds it, then its lease is taken away.
	held := make(chan error, 2)
	w, err := client.NewWorker(s.conn, client.ReconcilerFunc(func(ctx context.Context, _ client.Item) (client.Result, error) {
		held <- nil
		<-ctx.Done()
		held <- context.Cause(ctx)
		return client.Result{}, client.Terminal(context.Cause(ctx))
	}), client.WorkerConfig{Queue: "dev/a", Grace: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	worked := make(chan error, 1)
	go func() { worked <- w.Run(ctx) }()
	<-held
	s.refuses(cli.ExitRefused, "held by a worker", "queue", "delete", "dev/a", "one")
	s.refuses(cli.ExitRefused, `1 of queue "dev/a"`, "queue", "remove", "dev/a")
	s.must("queue", "pause", "dev/a")
	contains(t, s.must("queue", "ls"), "paused")
	if out := s.must("queue", "release", "dev/a", "one"); out != "one done\n" {
		t.Errorf("release printed %q", out)
	}
	if cause := <-held; cause == nil || !strings.Contains(cause.Error(), "lease") {
		t.Errorf("the worker's context ended with %v", cause)
	}
	s.must("queue", "add", "dev/a", "soon", "--after", "50s")
	s.must("queue", "add", "dev/a", "tonight", "--after", "10h")
	_, errs, code = s.try("queue", "drain", "dev/a", "--wait", "200ms")
	if code != cli.ExitUnavailable || !strings.Contains(errs, "not drained within 200ms: waits for one (ready), soon (delayed)\n") {
		t.Errorf("drain: exit %d, said %s; want the keys it waits for, and not that of tonight", code, errs)
	}
	if out, _, _ := s.try("queue", "drain", "dev/a", "--wait", "200ms", "-o", "json"); !strings.Contains(out, `"waits_for":["one (ready)","soon (delayed)"]`) {
		t.Errorf("drain -o json printed %s; want the keys it waits for", out)
	}
	s.refuses(cli.ExitUnavailable, "tonight (delayed)", "queue", "drain", "dev/a", "--wait", "200ms", "--due-within", "-1s")
	s.must("queue", "delete", "dev/a", "soon")
	stop()
	if err := <-worked; err != nil {
		t.Error(err)
	}
	s.must("queue", "delete", "dev/a", "one")
	if out := s.must("queue", "drain", "dev/a", "--close"); out != "dev/a drained\n" {
		t.Errorf("drain printed %q", out)
	}
	if out := s.must("queue", "drain", "dev/a", "-o", "json"); !strings.Contains(out, `"drained":true`) {
		t.Errorf("drain -o json printed %q", out)
	}
	s.refuses(cli.ExitRefused, "QUEUE_CLOSED", "queue", "add", "dev/a", "x")
	s.refuses(cli.ExitNotFound, "there are: dev/a", "queue", "describe", "dev/b", "x")
	contains(t, s.must("queue", "ls"), "closed, paused")
	s.must("queue", "resume", "dev/a")
	s.must("queue", "open", "dev/a")
	s.must("queue", "add", "dev/a", "x")

	if out := s.must("queue", "remove", "dev/a"); out != "dev/a removed\n" {
		t.Errorf("remove printed %q", out)
	}
	s.refuses(cli.ExitNotFound, "QUEUE_NOT_FOUND", "queue", "add", "dev/a", "x")
	s.refuses(cli.ExitNotFound, "QUEUE_NOT_FOUND", "queue", "remove", "dev/a", "--force")
	s.refuses(cli.ExitNotFound, "there are: none yet", "queue", "remove", "dev/a")
	s.refuses(cli.ExitNotFound, "QUEUE_NOT_FOUND", "queue", "pause", "none")
	s.refuses(cli.ExitUsage, "name keys", "queue", "retry", "dev/a")
	s.refuses(cli.ExitUsage, "name keys", "queue", "retry", "dev/a", "x", "--state", "dead")
	s.refuses(cli.ExitUsage, "--state", "queue", "delete", "dev/a", "--state", "asleep")
	s.refuses(cli.ExitUsage, "--limit", "queue", "items", "dev/a", "--limit", "-1")
}

func TestDeadKeysAreListedWithTheirReasonAndRunAgain(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	s.must("queue", "configure", "dev/a")
	s.must("queue", "add", "dev/a", "broken")
	w, err := client.NewWorker(s.conn, client.ReconcilerFunc(func(context.Context, client.Item) (client.Result, error) {
		return client.Result{}, client.Terminal(context.DeadlineExceeded)
	}), client.WorkerConfig{Queue: "dev/a"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	worked := make(chan error, 1)
	go func() { worked <- w.Run(ctx) }()
	until(t, func() bool { return strings.Contains(s.must("queue", "dead", "ls", "dev/a"), "deadline exceeded") })
	stop()
	if err := <-worked; err != nil {
		t.Error(err)
	}
	if out := s.must("queue", "retry", "dev/a", "--state", "dead", "-o", "json"); !strings.Contains(out, "ITEM_STATUS_DONE") {
		t.Errorf("retry printed %s", out)
	}
	// The server may hand the key to the worker's stream while that ends; it then waits again a moment
	// later.
	until(t, func() bool { return strings.Contains(s.must("queue", "items", "dev/a", "--state", "ready"), "broken") })
	contains(t, s.must("queue", "describe", "dev/a", "broken"), "ready", "settled: dead", "deadline exceeded")
}

func TestBackoffEntriesByTheCommandLine(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	s.must("queue", "configure", "dev/a", "--backoff-initial", "1m", "--backoff-max", "3m")
	contains(t, s.must("queue", "backoff", "next", "dev/a", "x", "y"), "ID", "x    1m0s")
	contains(t, s.must("queue", "backoff", "next", "dev/a", "x"), "2m0s")
	contains(t, s.must("queue", "backoff", "next", "dev/a", "x", "--event-time", time.Now().Add(time.Hour).Format(time.RFC3339)), "1m0s")
	if out := s.must("queue", "backoff", "reset", "dev/a", "x"); out != "x reset\n" {
		t.Errorf("reset printed %q", out)
	}
	contains(t, s.must("queue", "backoff", "get", "dev/a", "y"), "y    1m0s")
	s.refuses(cli.ExitNotFound, `"x"`, "queue", "backoff", "get", "dev/a", "x", "y") // x starts over
	if text := s.must("queue", "backoff", "get", "dev/a", "y", "-o", "json"); !json.Valid([]byte(text)) {
		t.Errorf("get -o json printed\n%s", text)
	}
	s.refuses(cli.ExitUsage, "--event-time", "queue", "backoff", "next", "dev/a", "x", "--event-time", "noon")
	s.refuses(cli.ExitUsage, "ids", "queue", "backoff", "get", "dev/a", "")
}

func TestQueueArgumentsAreCompleted(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	s.must("queue", "configure", "dev/alpha")
	s.must("queue", "add", "dev/alpha", "default/late", "--after", "1h")
	s.must("queue", "add", "dev/alpha", "default/now")
	for _, x := range []struct {
		args []string
		want string
	}{
		{[]string{"queue", "pause", "--queue-url", s.addr, "dev/"}, "dev/alpha\n:4\n"},
		{[]string{"queue", "retry", "--queue-url", s.addr, "dev/alpha", "default/"}, "default/late\tdelayed\n:4\n"},
		{[]string{"queue", "items", "dev/alpha", "--state", "d"}, "dead\ndelayed\ndirty\n"},
		{[]string{"queue", "pause", "--queue-url", "127.0.0.1:1", ""}, ":4\n"},
	} {
		out, _, code := command(t.Context(), "", append([]string{"__complete"}, x.args...)...)
		if code != cli.ExitOK || !strings.HasPrefix(out, x.want) {
			t.Errorf("%v offers %q with code %d, want %q", x.args, out, code, x.want)
		}
	}
	// The address is a setting like any other: a file may name it, and so may the environment.
	file := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(file, []byte("queue-url: "+s.addr+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _, _ := command(t.Context(), "", "__complete", "queue", "pause", "--config", file, ""); !strings.HasPrefix(out, "dev/alpha\n") {
		t.Errorf("with the address in a file %q is offered", out)
	}
}

func TestWhatOthersChoseIsShownToATerminalQuoted(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	s.must("queue", "configure", "dev/a")
	key := "red\x1b[31m\nline\ttab"
	for _, command := range [][]string{
		{"queue", "add", "dev/a", key},
		{"queue", "items", "dev/a"},
		{"queue", "describe", "dev/a", key},
		{"queue", "forget", "dev/a", key},
		{"queue", "backoff", "next", "dev/a", key},
		{"queue", "retry", "dev/a", key},
		{"queue", "delete", "dev/a", key},
	} {
		out := s.must(command...)
		if strings.Contains(out, "\x1b") || !strings.Contains(out, `"red\x1b[31m\nline\ttab"`) {
			t.Errorf("%v printed %q", command[:2], out)
		}
	}
}

func TestBadAddsAreWrongUsage(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	s.must("queue", "configure", "dev/a")
	s.refuses(cli.ExitUsage, "--after and --rate-limited", "queue", "add", "dev/a", "k", "--after", "1s", "--rate-limited")
	s.refuses(cli.ExitUsage, `"\xff" is not UTF-8`, "queue", "add", "dev/a", "\xff")
	s.refuses(cli.ExitUsage, `"\xff" is not UTF-8`, "queue", "describe", "dev/a", "\xff")
}

func TestServeQueueFindsRedisBehindSentinelsAndInACluster(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(*testing.T) string{
		"sentinels": func(t *testing.T) string { t.Helper(); return embeddedtest.Sentinel(t, 1).URL() },
		"cluster":   func(t *testing.T) string { t.Helper(); return embeddedtest.Cluster(t, 3).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serveQueue(t, "--redis-url", url(t))
			s.must("queue", "configure", "dev/a", "--partitions", "4")
			s.must("queue", "add", "dev/a", "one", "two", "three")
			contains(t, s.must("queue", "items", "dev/a", "--state", "ready"), "one", "two", "three")
		})
	}
}
