package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/why"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

// TestWhyNamesWhatKeepsAKeyInAQueue makes keys wait for every cause that is of the queue, its
// workers and what they write.
func TestWhyNamesWhatKeepsAKeyInAQueue(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	const slow = "exponential:1h,1h" // what failed stays delayed
	for name, c := range map[string]struct {
		want      why.Cause
		key       string
		configure []string
		build     func(t *testing.T, queue string)
		says      []string
	}{
		"stuck holder": {why.StuckHolder, "k", []string{"--lease-duration", "1s"}, func(t *testing.T, queue string) {
			s.must("queue", "add", queue, "k")
			s.works(t, queue, func(ctx context.Context, _ client.Item) (client.Result, error) {
				<-ctx.Done()
				return client.Result{}, context.Cause(ctx)
			})
		}, []string{"controllers-0/test", "has not returned", "queue release"}},
		"holder stopped whole": {why.HolderStopped, "k", []string{"--lease-duration", "2s"}, func(t *testing.T, queue string) {
			s.must("queue", "add", queue, "k")
			s.silent(t, queue)
		}, []string{"stopped-0/test", "has not extended it", "queue release"}},
		"exhausted bucket of the rate limiter": {why.BucketExhausted, "b", []string{"--rate-limiter", "exponential:1ms,1ms+bucket:0.001,1"}, func(t *testing.T, queue string) {
			s.must("queue", "add", queue, "--rate-limited", "a") // takes the only token
			s.must("queue", "add", queue, "b")
			s.fails(t, queue, func(context.Context) error { return errors.New("no luck") })
		}, []string{"which all keys of the queue share"}},
		"exhausted bucket of the dispatch limiter": {why.BucketExhausted, "b", []string{"--dispatch-limiter", "0.001,1"}, func(t *testing.T, queue string) {
			s.must("queue", "add", queue, "a", "--priority", "1")
			s.works(t, queue, func(context.Context, client.Item) (client.Result, error) { return client.Result{}, nil })
			until(t, func() bool { return !strings.Contains(s.must("queue", "items", queue, "--state", "ready"), "a ") })
			s.must("queue", "add", queue, "b")
		}, []string{"dispatch limiter (0.001 keys a second, 1 at once)"}},
		"back-off at its maximum": {why.BackoffMaximum, "k", []string{"--rate-limiter", "exponential:1ms,1h"}, func(t *testing.T, queue string) {
			s.must("queue", "pause", queue)
			for range 30 {
				s.must("queue", "add", queue, "--rate-limited", "k")
			}
			s.must("queue", "resume", queue)
			s.fails(t, queue, func(context.Context) error { return errors.New("no luck") })
		}, []string{"at its maximum of 1h0m0s (attempt 3", "no luck"}},
		"poison key": {why.PoisonKey, "k", []string{"--lease-duration", "1s", "--max-deliveries", "2"}, func(t *testing.T, queue string) {
			s.must("queue", "add", queue, "k")
			s.silent(t, queue)
		}, []string{"handed out 2 times and never settled", "s-dev/poison-key"}},
		"max_retries reached": {why.MaxRetries, "k", []string{"--rate-limiter", "exponential:1ms,1ms", "--max-retries", "2"}, func(t *testing.T, queue string) {
			s.must("queue", "add", queue, "k")
			s.fails(t, queue, func(context.Context) error { return errors.New("no luck") })
		}, []string{"failed 2 times, the queue's max_retries", "no luck", "queue retry"}},
		"given up by its worker": {why.Terminal, "k", nil, func(t *testing.T, queue string) {
			s.must("queue", "add", queue, "k")
			s.fails(t, queue, func(context.Context) error { return client.Terminal(errors.New("the spec is wrong")) })
		}, []string{"the spec is wrong"}},
		"paused queue": {why.QueuePaused, "k", nil, func(_ *testing.T, queue string) {
			s.must("queue", "add", queue, "k")
			s.must("queue", "pause", queue)
		}, []string{"queue resume dev/paused-queue"}},
		"drained queue": {why.QueueClosed, "k", nil, func(_ *testing.T, queue string) {
			s.must("queue", "drain", queue, "--close")
			s.refuses(cli.ExitRefused, "QUEUE_CLOSED", "queue", "add", queue, "k")
		}, []string{"as a drain leaves it", "queue open dev/drained-queue"}},
		"no worker connected": {why.NoWorker, "k", nil, func(_ *testing.T, queue string) {
			s.must("queue", "add", queue, "k")
		}, []string{"none is connected", "start the controller"}},
		"workers that are busy": {why.WorkersBusy, "later", nil, func(t *testing.T, queue string) {
			s.must("queue", "add", queue, "k")
			s.silent(t, queue)
			s.must("queue", "add", queue, "later")
		}, []string{"1 connected, all busy"}},
		"admission webhook that denies": {why.AdmissionDeny, "k", []string{"--rate-limiter", slow}, func(t *testing.T, queue string) {
			s.must("queue", "add", queue, "k")
			s.fails(t, queue, refusing(t, http.StatusForbidden, "Forbidden", `admission webhook "policy.example.com" denied the request: no`))
		}, []string{`webhook "policy.example.com" denies`, "attempt 1"}},
		"RBAC that forbids": {why.Forbidden, "k", []string{"--rate-limiter", slow}, func(t *testing.T, queue string) {
			s.must("queue", "add", queue, "k")
			s.fails(t, queue, refusing(t, http.StatusForbidden, "Forbidden",
				`pods is forbidden: User "system:serviceaccount:a:b" cannot create resource "pods" in API group "" in the namespace "default"`))
		}, []string{`"system:serviceaccount:a:b", create pods`, "grant that user the verb create on pods"}},
		"conflict on every write": {why.Conflict, "k", []string{"--rate-limiter", slow}, func(t *testing.T, queue string) {
			s.must("queue", "add", queue, "k")
			s.fails(t, queue, refusing(t, http.StatusConflict, "Conflict",
				`Operation cannot be fulfilled on pods "k": the object has been modified; please apply your changes to the latest version and try again`))
		}, []string{"somebody else writes the same object"}},
		"a delay that was asked for": {why.Delayed, "k", nil, func(_ *testing.T, queue string) {
			s.must("queue", "add", queue, "k", "--after", "1h")
		}, []string{"queue retry"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := "dev/" + strings.ReplaceAll(name, " ", "-")
			s.must(append([]string{"queue", "configure", queue}, c.configure...)...)
			c.build(t, queue)
			answer := asking{t, s.addr, nobodyThere, nobodyThere}.names(c.want, queue, c.key, c.says...)
			if len(answer.Silent) != 2 {
				t.Errorf("silent are %v, want index and reflector", answer.Silent)
			}
		})
	}
	t.Run("key of a queue whose controller is not configured", func(t *testing.T) {
		t.Parallel()
		s.must("queue", "configure", "dev/job")
		asking{t, s.addr, nobodyThere, nobodyThere}.names(why.QueueUnknown, "dev/jobs", "k", "nobody has configured the queue dev/jobs", "dev/job")
		s.refuses(cli.ExitNotFound, "no queue dev/jobs", "why", "queue", "dev/jobs", "k", "--timeout", "30s", "--index-url", nobodyThere, "--reflector-url", nobodyThere)
	})
}

// refusing is a write that an API server refuses.
func refusing(t *testing.T, code int, reason, message string) func(context.Context) error {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":%q,"reason":%q,"code":%d}`, message, reason, code)
	}))
	t.Cleanup(srv.Close)
	api, err := kube.Load(kube.Config{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	return func(ctx context.Context) error {
		ref := kube.Ref{Resource: kube.Resource{Version: "v1", Name: "pods", Namespaced: true}, Namespace: "default", Name: "k"}
		_, err := api.Update(ctx, ref, []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"k"}}`), kube.WriteOptions{})
		return err
	}
}

func TestWhyNamesAStoreThatIsFull(t *testing.T) {
	t.Parallel()
	srv := embeddedtest.DurableRedis(t)
	s := serveQueue(t, "--redis-url", srv.URL())
	s.must("queue", "configure", "dev/a")
	srv.Do("CONFIG", "SET", "maxmemory", "1mb")
	s.refuses(cli.ExitFailure, "STORE_FULL", "queue", "add", "dev/a", "k")
	asking{t, s.addr, nobodyThere, nobodyThere}.names(why.StoreFull, "dev/a", "k", "STORE_FULL", "more memory")
}

func TestWhyNamesAStepOfTheStoresClock(t *testing.T) {
	t.Parallel()
	var step atomic.Int64
	e, err := redis.New(redis.Config{URL: embeddedtest.DurableRedis(t).URL(), Step: func() time.Duration { return time.Duration(step.Load()) }})
	if err != nil {
		t.Fatal(err)
	}
	r := queuetest.Serve(t, queue.Config{}, e)
	r.Configure(t)
	must := func(args ...string) {
		t.Helper()
		if _, errs, code := command(t.Context(), "", append(args, "--queue-url", r.Addr)...); code != cli.ExitOK {
			t.Fatalf("%v: %s", args, errs)
		}
	}
	must("queue", "add", queuetest.Q, "k", "--after", "1h")
	step.Store(int64(-time.Hour))
	asking{t, r.Addr, nobodyThere, nobodyThere}.names(why.ClockStep, queuetest.Q, "k", "stepped by -1h0m0s", "one lease time (30s) longer")
}

func TestWhyNamesWhichPartsDidNotAnswer(t *testing.T) {
	t.Parallel()
	deaf, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = deaf.Close() })
	at := deaf.Addr().String() // it takes connections and says nothing
	out, errs, code := command(t.Context(), "", "why", "queue", "dev/a", "k", "--queue-url", at, "--index-url", at, "--reflector-url", nobodyThere)
	if code != cli.ExitUnavailable || !strings.Contains(errs, "queue service") {
		t.Errorf("exit %d, said %s", code, errs)
	}
	contains(t, out, "The queue did not answer: "+at+": no answer within 250ms", "The index did not answer", "The reflector did not answer: "+nobodyThere, "queue_silent")
}

func TestWhyTellsOfEveryQueueThatAnObjectWoke(t *testing.T) {
	t.Parallel()
	r := startUp(t)
	const lone = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: two}\nspec:\n" +
		"  template: {spec: {restartPolicy: Never, containers: [{name: main, image: none}]}}\n"
	if _, errs, code := command(t.Context(), lone, append([]string{"apply", "-f", "-"}, r.api...)...); code != cli.ExitOK {
		t.Fatal(errs)
	}
	var pod string
	until(t, func() bool {
		out, _, _ := command(t.Context(), "", append([]string{"get", "pods", "-o", "keys"}, r.ask...)...)
		pod = strings.TrimSpace(out)
		done, _, _ := command(t.Context(), "", append([]string{"get", "jobs", "default/two", "-o", "json"}, r.ask...)...)
		return pod != "" && strings.Contains(done, `"Complete"`)
	})
	ask := append([]string{"--timeout", "30s"}, r.ask...)
	until(t, func() bool {
		out, errs, code := command(t.Context(), "", append([]string{"why", "pods", pod}, ask...)...)
		if code != cli.ExitOK {
			t.Fatal(errs)
		}
		return strings.Contains(out, "\ndev/job\n") && strings.Contains(out, "default/two of dev/job is ") &&
			strings.Contains(out, "event of dev/pods.v1 at ") && strings.Contains(out, "patch dev/pods.v1 "+pod)
	})
	if _, errs, code := command(t.Context(), "", append([]string{"why", "gadgets", "a"}, ask...)...); code != cli.ExitNotFound || !strings.Contains(errs, "COLLECTION_NOT_FOUND") {
		t.Errorf("of a collection that nobody mirrors: exit %d, %s", code, errs)
	}
	out, _, code := command(t.Context(), "", append([]string{"why", "pods", "default/none"}, ask...)...)
	if code != cli.ExitOK || !strings.Contains(out, "is not in the index") || !strings.Contains(out, "No queue knows a key of it") {
		t.Errorf("of an object that never was: exit %d\n%s", code, out)
	}
}

// forever is longer than any test takes.
const forever = time.Hour

func TestWhyNamesAnIndexThatIsBehindOrLacksACollection(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	p := startPipeline(t, s.addr, forever)
	p.showsWrites(s)
	p.awaits(s, "dev/not-mirrored", "dev/gadgets.v1", "5")
	p.names(why.NotMirrored, "dev/not-mirrored", "late", "dev/gadgets.v1", "reflection add gadgets.v1")
	p.gate.set("nodes", hold)
	p.node("second")
	p.awaits(s, "dev/lagging", "dev/nodes.v1", p.node("third"))
	p.names(why.IndexLagging, "dev/lagging", "late", "dev/nodes.v1", "records behind the end of the log")
}

func TestWhyNamesAnIndexThatIsFrozen(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	p := startPipeline(t, s.addr, forever)
	p.gate.set("nodes", func(_ context.Context, b *delta.Batch) { // a later build writes the log now
		*b = delta.Batch{Newer: &delta.NewerError{Sequence: 9, Unknown: &delta.UnknownError{Part: delta.PartVersion, Value: "2"}, Writer: "r9", Build: "v9"}}
	})
	p.awaits(s, "dev/frozen", "dev/nodes.v1", p.node("second"))
	p.names(why.IndexFrozen, "dev/frozen", "late", "dev/nodes.v1", "stood still since", "needs version 2")
}

func TestWhyNamesAReflectorThatIsDead(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	p := startPipeline(t, s.addr, 300*time.Millisecond)
	p.stopReflector()
	p.awaits(s, "dev/dead-reflector", "dev/nodes.v1", p.node("second"))
	p.names(why.ReflectorDead, "dev/dead-reflector", "late", "dev/nodes.v1", "start a reflector")
	s.must("queue", "configure", "dev/idle")
	p.names(why.ReflectorDead, "dev/idle", "never-added", "have not come", "start a reflector")
}

func TestWhyNamesALogThatIsDead(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	p := startPipeline(t, s.addr, 300*time.Millisecond)
	p.log.Stop()
	p.awaits(s, "dev/dead-log", "dev/nodes.v1", p.node("second"))
	p.names(why.LogDead, "dev/dead-log", "late", "dev/nodes.v1", "bring NATS")
}

// showsWrites has a run write a node, and wants the write and its return in the timeline.
func (p *pipeline) showsWrites(s *servedQueue) {
	p.t.Helper()
	s.must("queue", "configure", "dev/writes")
	s.works(p.t, "dev/writes", func(ctx context.Context, _ client.Item) (client.Result, error) {
		_, err := p.kube.Patch(ctx, kube.Ref{Resource: kube.Resource{Version: "v1", Name: "nodes"}, Name: "first"}, kube.MergePatch,
			[]byte(`{"metadata":{"labels":{"a":"b"}}}`), kube.WriteOptions{})
		return client.Result{}, err
	})
	s.must("queue", "add", "dev/writes", "first")
	until(p.t, func() bool {
		a := p.why("queue", "dev/writes", "first")
		has := func(what, detail string) bool {
			return slices.ContainsFunc(a.Timeline, func(e why.Entry) bool { return e.What == what && strings.HasPrefix(e.Detail, detail) })
		}
		return a.Cause == why.None && has("wrote", "patch dev/nodes.v1 first ") && has("came back", "dev/nodes.v1 first")
	})
}
