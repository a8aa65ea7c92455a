package queue_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// serveDir, set in the environment, makes the test binary a queue server on
// that directory, which prints its address.
const serveDir = "DELTAPLANE_TEST_QUEUE_DIR"

func serveUntilKilled(dir string) error {
	cfg := queue.Config{DataDir: dir, Queues: []queue.QueueConfig{{Name: queuetest.Q}}}
	cfg.Admin.Listen = "off"
	s, err := queue.New(cfg, queuetest.Quiet())
	if err != nil {
		return err
	}
	go func() {
		addr, _ := s.Addr(context.Background())
		fmt.Println(addr)
	}()
	return s.Run(context.Background())
}

// process starts this binary as a queue server and connects to it.
func process(t *testing.T, dir string) (*queuetest.Rig, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), serveDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	in := bufio.NewScanner(out)
	if !in.Scan() {
		t.Fatalf("the server did not start: %v", in.Err())
	}
	conn, err := rpc.Dial(in.Text(), rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return queuetest.Calling(conn), cmd
}

func TestKill9OfAServerUnderLoadLosesNoAcknowledgedAdd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, cmd := process(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var (
		mu      sync.Mutex
		added   = map[string]bool{} // acknowledged
		tried   = map[string]bool{} // a settlement was sent
		settled = map[string]bool{} // and acknowledged
		token   uint64              // the greatest handed out
		busy    sync.WaitGroup
		once    sync.Once
	)
	enough := make(chan struct{})
	for p := range 4 {
		busy.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				req := &queuev1.AddRequest{Queue: queuetest.Q}
				for k := range 5 {
					req.Items = append(req.Items, &queuev1.AddItem{Key: fmt.Sprintf("%d/%d-%d", p, i, k)})
				}
				if _, err := r.Add(ctx, req); err != nil {
					return
				}
				mu.Lock()
				for _, it := range req.Items {
					added[it.GetKey()] = true
				}
				if len(added) >= 3000 && len(settled) >= 500 {
					once.Do(func() { close(enough) })
				}
				mu.Unlock()
			}
		})
	}
	for w := range 2 {
		id := "w" + strconv.Itoa(w)
		busy.Go(func() {
			for ctx.Err() == nil {
				got, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: id, MaxItems: 5, Wait: durationpb.New(time.Second)})
				if err != nil {
					return
				}
				req := &queuev1.SettleRequest{SessionId: id}
				mu.Lock()
				for _, l := range got.GetLeases() {
					token = max(token, l.GetToken())
					tried[l.GetKey()] = true
					req.Settlements = append(req.Settlements, &queuev1.Settlement{Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuetest.Done})
				}
				mu.Unlock()
				if len(req.Settlements) == 0 {
					continue
				}
				if _, err := r.Settle(ctx, req); err != nil {
					return
				}
				mu.Lock()
				for _, s := range req.Settlements {
					settled[s.GetKey()] = true
				}
				mu.Unlock()
			}
		})
	}
	queuetest.Wait(t, enough)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	cancel()
	busy.Wait()

	r, _ = process(t, dir)
	left := map[string]bool{}
	for k := range added {
		if !tried[k] {
			left[k] = true
		}
	}
	t.Logf("%d adds and %d settlements acknowledged, %d keys must come", len(added), len(settled), len(left))
	for len(left) > 0 {
		got, err := r.Get(t.Context(), &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "after", MaxItems: 1000, Wait: durationpb.New(2500 * time.Millisecond)})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.GetLeases()) == 0 {
			break
		}
		for _, l := range got.GetLeases() {
			delete(left, l.GetKey())
			if settled[l.GetKey()] {
				t.Errorf("%q came again, its settlement was acknowledged", l.GetKey())
			}
			if l.GetToken() <= token {
				t.Errorf("%q: token %d, %d was handed out before the end", l.GetKey(), l.GetToken(), token)
			}
		}
	}
	for k := range left {
		t.Fatalf("%d acknowledged keys are lost, %q for one", len(left), k)
	}
}
