package client_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// pages is a log that a test reads while it is written.
type pages struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (p *pages) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buf.Write(b)
}

func (p *pages) count(text string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Count(p.buf.String(), text)
}

// none is a queue service without queues.
type none struct {
	queuev1.UnimplementedQueueServiceServer
}

func (none) Work(s queuev1.QueueService_WorkServer) error {
	if _, err := s.Recv(); err != nil {
		return err
	}
	return rpc.Status(client.ErrQueueNotFound, []rpc.Rule{{Is: client.ErrQueueNotFound, Code: codes.NotFound, Reason: "QUEUE_NOT_FOUND"}})
}

func TestAWorkerOfAQueueThatDoesNotExistWarnsAgainAndAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn, stop := serve(t, func(r grpc.ServiceRegistrar) { queuev1.RegisterQueueServiceServer(r, none{}) })
		defer stop()
		var log pages
		w, err := client.NewWorker(conn, client.ReconcilerFunc(nil), client.WorkerConfig{Queue: "dev/typo", Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if err := w.Run(ctx); err != nil {
			t.Errorf("Run = %v: the queue may be created later", err)
		}
		if info, warn := log.count("level=INFO"), log.count("level=WARN"); info != 1 || warn < 8 || warn > 11 || log.count("dev/typo") != info+warn {
			t.Errorf("in ten minutes it said %d times that this may be ordinary and warned %d times, want once, then each minute", info, warn)
		}
	})
}

func TestAWorkerAndATriggerAtAnotherServicesPortSaySo(t *testing.T) {
	t.Parallel()
	conn, stop := serve(t, func(r grpc.ServiceRegistrar) { indexv1.RegisterIndexServiceServer(r, &shelf{}) })
	defer stop()
	quietLog := slog.New(slog.DiscardHandler)
	w, err := client.NewWorker(conn, client.ReconcilerFunc(nil), client.WorkerConfig{Queue: "dev/web", Log: quietLog})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := client.NewTrigger(client.NewQueue(conn, "dev/web", ""), client.NewIndex(conn), quiet{}, &memory{m: map[string]string{}},
		client.TriggerConfig{Name: "web", Primary: jobs, Log: quietLog})
	if err != nil {
		t.Fatal(err)
	}
	for name, run := range map[string]func(context.Context) error{"worker": w.Run, "trigger": tr.Run} {
		if err := run(t.Context()); err == nil || !contains(err, "is not a queue service") || rpc.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// pod is an index with one pod.
type pod struct {
	indexv1.UnimplementedIndexServiceServer
}

func (pod) Watch(_ *indexv1.WatchRequest, s indexv1.IndexService_WatchServer) error {
	batch := events(nil, deltav1.DeltaType_DELTA_TYPE_ADDED, "default/web")
	batch.GetEvents().GetEvents()[0].Object.ResourceVersion = "7"
	for _, m := range []*indexv1.WatchResponse{batch, {Kind: &indexv1.WatchResponse_InitialStateEnd{InitialStateEnd: &indexv1.InitialStateEnd{}}, Position: at(7)}} {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	<-s.Context().Done()
	return nil
}

func (pod) BatchGet(_ context.Context, req *indexv1.BatchGetRequest) (*indexv1.BatchGetResponse, error) {
	return &indexv1.BatchGetResponse{
		Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "7"},
		Objects:  []*indexv1.Object{{Key: req.GetKeys()[0], ResourceVersion: req.GetConsistency().GetAtLeast().GetResourceVersion()}},
	}, nil
}

func TestTheExampleMakesItsQueueAndReconcilesWhatThereIs(t *testing.T) {
	t.Parallel()
	indexes, stop := serve(t, func(r grpc.ServiceRegistrar) { indexv1.RegisterIndexServiceServer(r, pod{}) })
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	acted := make(chan client.Object, 10)
	done := make(chan error, 1)
	go func() {
		done <- control(ctx, dial(t, realQueue(t), client.DialConfig{}), indexes, func(pod client.Object) { acted <- pod })
	}()
	select {
	case pod := <-acted:
		if pod.Key != "default/web" || pod.ResourceVersion != "7" {
			t.Errorf("it acted on %s, read at least at %s; want default/web at 7", pod.Key, pod.ResourceVersion)
		}
	case err := <-done:
		t.Fatalf("it ended: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTheExampleEndsWithAnErrorWhenThePortsAreSwapped(t *testing.T) {
	t.Parallel()
	indexes, stop := serve(t, func(r grpc.ServiceRegistrar) { indexv1.RegisterIndexServiceServer(r, pod{}) })
	defer stop()
	queues := dial(t, realQueue(t), client.DialConfig{})
	for name, conns := range map[string][2]grpc.ClientConnInterface{
		"both": {indexes, queues}, "no queue": {indexes, indexes}, "no index": {queues, queues},
	} {
		if err := control(t.Context(), conns[0], conns[1], nil); rpc.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", name, err)
		}
	}
}
