package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// secretive is a reflector that refuses everybody.
type secretive struct {
	reflectorv1.UnimplementedReflectorServiceServer
}

func (secretive) ListReflections(context.Context, *reflectorv1.ListReflectionsRequest) (*reflectorv1.ListReflectionsResponse, error) {
	return nil, status.Error(codes.PermissionDenied, "you may not list reflections")
}

// busyQueue has a queue with more keys than are looked at.
type busyQueue struct {
	queuev1.UnimplementedQueueAdminServiceServer
}

func (busyQueue) ListQueues(context.Context, *queuev1.ListQueuesRequest) (*queuev1.ListQueuesResponse, error) {
	return &queuev1.ListQueuesResponse{Queues: []*queuev1.QueueStatus{
		{Config: &queuev1.QueueConfig{Name: "dev/busy"}, Counts: &queuev1.Counts{Processing: 2, Delayed: 5000}},
		{Config: &queuev1.QueueConfig{Name: "dev/gone"}, Counts: &queuev1.Counts{Processing: 1}},
	}}, nil
}

func (busyQueue) ListItems(_ context.Context, r *queuev1.ListItemsRequest) (*queuev1.ListItemsResponse, error) {
	if r.GetQueue() == "dev/gone" {
		return nil, status.Error(codes.NotFound, "it was removed")
	}
	if r.GetState() == queuev1.State_STATE_DELAYED {
		return &queuev1.ListItemsResponse{Items: []*queuev1.Item{{Key: "ns/fails", NumRequeues: 4}}}, nil
	}
	return &queuev1.ListItemsResponse{Items: []*queuev1.Item{{Key: "ns/a"}, {Key: "ns/b", Holder: "w"}}}, nil
}

func TestTopShowsWhatAnswersAndNamesWhatDoesNot(t *testing.T) {
	t.Parallel()
	reflector := servedAt(t, func(s *grpc.Server) { reflectorv1.RegisterReflectorServiceServer(s, secretive{}) })
	queue := servedAt(t, func(s *grpc.Server) { queuev1.RegisterQueueAdminServiceServer(s, busyQueue{}) })
	away, _ := nobody(t)
	flags := []string{"--reflector-url", reflector, "--index-url", away, "--queue-url", queue}
	out, errs, code := command(t.Context(), "", append([]string{"top", "--once"}, flags...)...)
	for _, want := range []string{"The index at " + away + " does not answer: ", "The reflector at " + reflector + " refuses: you may not", "dev/busy", "ns/b", "ns/fails"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not show %q:\n%s", want, out)
		}
	}
	if code != cli.ExitUnavailable || !strings.Contains(errs, "the index service at "+away) {
		t.Errorf("exit %d, %s", code, errs)
	}
	index := servedAt(t, func(s *grpc.Server) { indexv1.RegisterIndexServiceServer(s, &catalog{}) })
	_, errs, code = command(t.Context(), "", "top", "--once", "--timeout", "1m", "--reflector-url", reflector, "--index-url", index, "--queue-url", queue)
	if code != cli.ExitRefused || strings.Contains(errs, "cannot reach") || !strings.Contains(errs, "the reflector service at "+reflector+": you may not") || !strings.Contains(errs, "whoami") {
		t.Errorf("where one refuses and the others answer it exits %d, %s", code, errs)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	lines := make(chan string)
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, append([]string{"top", "-o", "json"}, flags...), streams{In: strings.NewReader(""), Out: lineWriter(lines), Err: &buffer{}})
	}()
	for range 2 {
		var d struct {
			Queues   []struct{ Leased int }
			Silent   []struct{ Part string }
			Unlooked int `json:"keys_not_looked_at"`
		}
		if line := <-lines; json.Unmarshal([]byte(line), &d) != nil || len(d.Queues) != 2 || len(d.Silent) != 2 || d.Unlooked != 4999 {
			t.Errorf("a document is %s", line)
		}
	}
	stop()
	if code := <-done; code != cli.ExitOK {
		t.Errorf("interrupted, it exits %d", code)
	}
}

// lineWriter hands on what is written, a line at a time as encoders write it.
type lineWriter chan<- string

func (w lineWriter) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}
