package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	batchv1 "k8s.io/api/batch/v1"

	"github.com/deltaplane/deltaplane/client/controller"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/internal/telemetry/recent"
)

// collector is an OTLP endpoint that keeps every span, by the service that sent it.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans map[string][]*tracev1.Span
}

func (c *collector) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.GetResourceSpans() {
		service := ""
		for _, a := range resource.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			c.spans[service] = append(c.spans[service], scope.GetSpans()...)
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// traces are the ids of the traces a service's spans of that name belong to or are linked to.
func (c *collector) traces(service, name string) map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := map[string]bool{}
	for _, s := range c.spans[service] {
		if s.GetName() == name {
			ids[string(s.GetTraceId())] = true
			for _, l := range s.GetLinks() {
				ids[string(l.GetTraceId())] = true
			}
		}
	}
	return ids
}

func (c *collector) names() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := map[string]int{}
	for service, spans := range c.spans {
		for _, s := range spans {
			names[service+": "+s.GetName()]++
		}
	}
	return names
}

// paths name every span behind those above it, each with its service.
func (c *collector) paths() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	type place struct{ name, above string }
	at := map[string]place{}
	for service, spans := range c.spans {
		for _, s := range spans {
			at[string(s.GetSpanId())] = place{strings.TrimPrefix(service, "deltaplane-") + " " + s.GetName(), string(s.GetParentSpanId())}
		}
	}
	paths := map[string]bool{}
	for _, p := range at {
		path := p.name
		for above := at[p.above]; above.name != ""; above = at[above.above] {
			path = above.name + " > " + path
		}
		paths[path] = true
	}
	return paths
}

// patchJobs runs a controller of the SDK, which follows the index, and patches each Job.
func patchJobs(t *testing.T, x *Target, collector string) {
	t.Helper()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "sdk", OTLPEndpoint: collector, LogOutput: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	ctl := controller.New(connect(t, x.Index, x.Dial), connect(t, x.Queue, x.Dial), controller.Options{Name: "patch", Tracer: tel.Tracer, Log: tel.Log}).For("jobs.v1.batch")
	api := &API{Base: x.API.Base, Client: &http.Client{Transport: ctl.Transport("")(http.DefaultTransport)}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() {
		ended <- ctl.Run(ctx, func(ctx context.Context, req controller.Request) (controller.Result, error) {
			err := api.merge(ctx, jobsPath+"/"+req.Name, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"seen": "yes"}}})
			if isStatus(err, http.StatusNotFound) {
				err = nil
			}
			return controller.Result{}, err
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, tel.Shutdown(context.WithoutCancel(t.Context()))); err != nil {
			t.Errorf("the controller of the SDK: %v", err)
		}
	})
}

// The trace rides in the record's headers, then in the queue's item: an Add carries items of many
// traces, so it is in none.
func TestOneTraceLeadsFromTheDeltaThroughTheQueueToTheReconcile(t *testing.T) {
	t.Parallel()
	var listen net.ListenConfig
	lis, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{spans: map[string][]*tracev1.Span{}}
	server := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)

	u := newUp(t, "")
	u.start(t, "up", append(u.upArgs(), "--otlp-endpoint", "http://"+lis.Addr().String(), "--trace-ratio", "1")...)
	u.awaitStart(t, "controllers")
	x := u.target()
	patchJobs(t, x, "http://"+lis.Addr().String())
	job := createJob(t, x, jobOf("traced", nil, nil))
	waitCondition(t, x, job.Name, batchv1.JobComplete, "", time.Minute)
	eventually(t, time.Minute, "a reconcile in the trace of a publish", func(context.Context) error {
		published := c.traces("deltaplane-reflector", "publish")
		for id := range c.traces("deltaplane-controllers", "reconcile") {
			if published[id] {
				return nil
			}
		}
		return fmt.Errorf("spans seen: %v", c.names())
	})
	eventually(t, time.Minute, "the write of a controller of the SDK in the trace of an event", func(context.Context) error {
		paths := c.paths()
		if !paths["reflector event > reflector publish > sdk trigger > sdk queue > sdk reconcile > sdk patch jobs.v1.batch"] {
			return fmt.Errorf("spans seen:\n%s", strings.Join(slices.Sorted(maps.Keys(paths)), "\n"))
		}
		return nil
	})
}

// Without a collector up keeps the last traces, and a write leads to its event.
func TestUpKeepsOneTreeFromTheEventToTheWriteAndTheWriteLeadsToItsEvent(t *testing.T) {
	t.Parallel()
	u := newUp(t, "")
	u.start(t, "up", append(u.upArgs(), "--trace-ratio", "1")...)
	u.awaitStart(t, "controllers")
	x := u.target()
	admin := &API{Base: "http://" + u.admin("controllers"), Client: http.DefaultClient}
	// A trigger that begins adds every key, and the round may wake the first Job before its event.
	first := createJob(t, x, jobOf("first", nil, nil))
	waitCondition(t, x, first.Name, batchv1.JobComplete, "", time.Minute)
	job := createJob(t, x, jobOf("kept", nil, nil))
	waitCondition(t, x, job.Name, batchv1.JobComplete, "", time.Minute)
	trace := ""
	eventually(t, time.Minute, "the whole trace of the Job's first event", func(ctx context.Context) error {
		var list telemetry.Traces
		if err := admin.do(ctx, http.MethodGet, "/traces?text=default/kept", "", nil, &list); err != nil {
			return err
		}
		last := errors.New("no trace")
		for _, t := range list.Traces {
			err := wholeTrace(ctx, admin, t.ID)
			if err == nil {
				trace = t.ID
				return nil
			}
			last = fmt.Errorf("%w; %s: %w", last, t.Name, err)
		}
		return last
	})
	page, err := openMetrics(t.Context(), u.admin("controllers"))
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`controller_runtime_reconcile_time_seconds_bucket\{controller="job".*# \{.*trace_id="[0-9a-f]{32}"`).MatchString(page) {
		t.Error("the time of reconciles has no exemplar")
	}
	out, err := exec.CommandContext(t.Context(), u.binary, "trace", trace, "--admin-url", "http://"+u.admin("index")).Output()
	if err != nil || !strings.Contains(string(out), "create pods.v1") || !strings.Contains(string(out), "its event: trace") {
		t.Errorf("deltaplane trace: %v\n%s", err, out)
	}
}

// wholeTrace says what a trace lacks of the way from a Job's event to the event of a pod of it.
func wholeTrace(ctx context.Context, admin *API, id string) error {
	var t recent.Trace
	if err := admin.do(ctx, http.MethodGet, "/traces?id="+id, "", nil, &t); err != nil {
		return err
	}
	above, by := map[string]string{}, map[string]recent.Span{}
	for _, s := range t.Spans { // parents come first
		above[s.ID] = strings.TrimPrefix(above[s.Parent]+" > "+s.Name, " > ")
		by[above[s.ID]] = s
	}
	const write = "event > publish > trigger > queue > reconcile > create pods.v1"
	for _, path := range []string{"event > publish > index", write} {
		if _, ok := by[path]; !ok {
			return fmt.Errorf("no span %s:\n%s", path, strings.Join(slices.Sorted(maps.Keys(by)), "\n"))
		}
	}
	created := by[write]
	for _, l := range created.Links {
		if !l.Kept {
			continue
		}
		var caused recent.Trace
		if err := admin.do(ctx, http.MethodGet, "/traces?id="+l.Trace, "", nil, &caused); err != nil {
			return err
		}
		event := caused.Spans[0]
		for _, key := range []string{"deltaplane.collection", "deltaplane.key", "deltaplane.resource_version"} {
			if event.Name != "event" || event.Attributes[key] == "" || event.Attributes[key] != created.Attributes[key] {
				return fmt.Errorf("the write %v leads to %s %v", created.Attributes, event.Name, event.Attributes)
			}
		}
		if !slices.ContainsFunc(caused.LinkedFrom, func(l recent.Link) bool { return l.Trace == id }) {
			return fmt.Errorf("the event is linked from %v", caused.LinkedFrom)
		}
		return nil
	}
	return fmt.Errorf("the write leads to no trace that is kept: %v", created.Links)
}

func openMetrics(ctx context.Context, admin string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/metrics", http.NoBody)
	if err != nil {
		return "", err
	}
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	page, err := io.ReadAll(answer.Body)
	return string(page), err
}
