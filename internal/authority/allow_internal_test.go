package authority

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

var (
	podsOfWeb = access.Attributes{Cluster: "dev", Verb: "list", Version: "v1", Resource: "pods", Namespace: "web"}
	bob       = &access.Identity{User: "bob", Cluster: "dev", Source: access.Cluster}
)

// allow decides for an identity, as Allow does for the caller of a call.
func (a *Authority) allowAs(ctx context.Context, id *access.Identity, w Want) error {
	d, err := a.any(ctx, id, w)
	if err != nil {
		return err
	}
	return a.settle(ctx, id, &w[len(w)-1], d)
}

func TestADecisionIsKeptUntilARoleChangesOrItsTimeIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &api{allowed: map[string]bool{right("bob", podsOfWeb): true}}
		a, _ := guarded(t, f, "")
		ask := func(want codes.Code, reviews int) {
			t.Helper()
			before, _ := f.count()
			if known := a.permits(bob, &podsOfWeb); known != (want == codes.OK && reviews == before) {
				t.Errorf("known to be permitted is %v before review %d", known, reviews)
			}
			if err := a.allowAs(t.Context(), bob, Want{podsOfWeb}); rpc.Code(err) != want {
				t.Errorf("%v, want %v", err, want)
			}
			if n, _ := f.count(); n != reviews {
				t.Errorf("%d reviews, want %d", n, reviews)
			}
		}
		ask(codes.OK, 1)
		time.Sleep(decidedFor - time.Second)
		ask(codes.OK, 1)
		time.Sleep(2 * time.Second)
		ask(codes.OK, 2)
		f.set(func() { clear(f.allowed) })
		ask(codes.OK, 2) // nobody has heard of it
		a.clusters[0].alter()
		ask(codes.PermissionDenied, 3)
		ask(codes.PermissionDenied, 3)
		time.Sleep(unsettledFor) // the API server may not have known the change yet
		f.set(func() { f.allowed[right("bob", podsOfWeb)] = true })
		ask(codes.OK, 4)
		time.Sleep(unsettledAfter)
		ask(codes.OK, 5)
		time.Sleep(unsettledAfter)
		ask(codes.OK, 5)
	})
}

func TestDecisionsAreKeptForAMomentOnlyWhereChangesAreNotSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &api{allowed: map[string]bool{right("bob", podsOfWeb): true}}
		a, _ := guarded(t, f, "")
		c := a.clusters[0]
		c.roles = quiet{err: errAway}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { c.followRoles(ctx); close(done) }()
		synctest.Wait()
		if err := a.Check(ctx); err == nil || !strings.Contains(err.Error(), "cluster dev") {
			t.Errorf("Check() = %v", err)
		}
		for i := range 3 {
			if err := a.allowAs(ctx, bob, Want{podsOfWeb}); err != nil {
				t.Error(err)
			}
			if n, _ := f.count(); n != i+1 {
				t.Errorf("%d reviews, want %d", n, i+1)
			}
			time.Sleep(unsettledFor)
		}
		cancel()
		<-done
	})
}

func TestWhatCannotBeDecidedIsRefusedAndAskedAgainSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &api{err: errAway, allowed: map[string]bool{right("bob", podsOfWeb): true}}
		a, out := guarded(t, f, "")
		err := a.allowAs(t.Context(), bob, Want{podsOfWeb})
		if rpc.Code(err) != codes.Unavailable || rpc.Reason(err) != "ACCESS_UNDECIDED" || rpc.RetryDelay(err) <= 0 || rpc.Info(err).GetMetadata()["namespace"] != "web" {
			t.Errorf("%v", err)
		}
		if !strings.Contains(out.String(), `"decision":"undecided"`) {
			t.Errorf("audit log: %s", out)
		}
		f.set(func() { f.err = nil })
		time.Sleep(failedFor)
		if err := a.allowAs(t.Context(), bob, Want{podsOfWeb}); err != nil {
			t.Error(err)
		}
	})
}

func TestADenialNamesWhatWasWantedAndIsAudited(t *testing.T) {
	t.Parallel()
	a, out := guarded(t, &api{}, "")
	one := podsOfWeb
	one.Verb, one.Name = "get", "p"
	all := one
	all.Name = ""
	err := a.allowAs(t.Context(), bob, Want{all, one})
	meta := rpc.Info(err).GetMetadata()
	if rpc.Code(err) != codes.PermissionDenied || rpc.Reason(err) != "PERMISSION_DENIED" ||
		meta["verb"] != "get" || meta["resource"] != "pods" || meta["namespace"] != "web" || meta["name"] != "p" || meta["cluster"] != "dev" {
		t.Errorf("%v with %v", err, meta)
	}
	if want := `"bob" of cluster dev may not get pods "p" of cluster dev in namespace "web"`; rpc.Message(err) != want {
		t.Errorf("message %q, want %q", rpc.Message(err), want)
	}
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for k, v := range map[string]string{"decision": "denied", "user": "bob", "cluster": "dev", "verb": "get", "resource": "pods", "namespace": "web", "name": "p", "of_cluster": "dev", "reason": "said the cluster"} {
		if line[k] != v {
			t.Errorf("audit %s = %v, want %q", k, line[k], v)
		}
	}
}

func TestTheAuditLogIsBoundedAndSaysWhatItLeftOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, out := guarded(t, &api{}, "")
		for range 3 * auditBurst {
			_ = a.allowAs(t.Context(), bob, Want{podsOfWeb})
		}
		if n := strings.Count(out.String(), "\n"); n != auditBurst {
			t.Errorf("%d lines at once, want %d", n, auditBurst)
		}
		time.Sleep(time.Second)
		_ = a.allowAs(t.Context(), bob, Want{podsOfWeb})
		if !strings.Contains(out.String(), `"dropped":2000`) || a.audit.lost() != 2*auditBurst {
			t.Error("it does not say how many lines were left out")
		}
		long := podsOfWeb
		long.Name = strings.Repeat("n", 100_000)
		time.Sleep(time.Second)
		before := out.Len()
		_ = a.allowAs(t.Context(), bob, Want{long})
		if n := out.Len() - before; n > 4096 {
			t.Errorf("a line has %d bytes", n)
		}
	})
}

func TestAnAdministrativeChangeIsAudited(t *testing.T) {
	t.Parallel()
	a, out := guarded(t, nil, policyOf("root", `{verbs: ["*"], apiGroups: [deltaplane.io], resources: [queues], resourceNames: ["team-*"]}`))
	root := &access.Identity{User: "root", Source: access.TokenFile}
	for _, verb := range []string{"add", "get", "administer"} {
		if err := a.allowAs(t.Context(), root, Named(verb, "queues", "team-a/jobs")); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 1 || !strings.Contains(out.String(), `"decision":"allowed"`) || !strings.Contains(out.String(), `"name":"team-a/jobs"`) {
		t.Errorf("audit log: %s", out)
	}
	if err := a.allowAs(t.Context(), root, Named("administer", "queues", "other")); rpc.Code(err) != codes.PermissionDenied {
		t.Errorf("a queue of another prefix: %v", err)
	}
}

func TestACallerHasNoRightsInAClusterThatDoesNotKnowIt(t *testing.T) {
	t.Parallel()
	f := &api{allowed: map[string]bool{right("bob", podsOfWeb): true}}
	a, _ := guarded(t, f, "")
	for _, id := range []*access.Identity{{User: "bob", Source: access.Certificate, Subject: "CN=bob"}, {User: "bob", Cluster: "prod", Source: access.Cluster}} {
		if err := a.allowAs(t.Context(), id, Want{podsOfWeb}); rpc.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", id.Name(), err)
		}
	}
	if n, _ := f.count(); n != 0 {
		t.Errorf("the cluster was asked %d times", n)
	}
	other := podsOfWeb
	other.Cluster = "prod" // which nobody here decides about
	if err := a.allowAs(t.Context(), bob, Want{other}); rpc.Code(err) != codes.PermissionDenied {
		t.Errorf("a cluster that is not known: %v", err)
	}
}

func TestCallersAndDecisionsAreBounded(t *testing.T) {
	t.Parallel()
	a, _ := guarded(t, nil, "")
	for i := range maxCallers + 500 {
		id := a.callers.intern(&access.Identity{User: "u" + strings.Repeat("x", i%7), UID: time.Duration(i).String(), Source: access.TokenFile})
		if again := a.callers.intern(&access.Identity{User: id.User, UID: id.UID, Source: access.TokenFile}); again != id {
			t.Fatal("equal identities are not one")
		}
	}
	if n := a.callers.len(); n > maxCallers {
		t.Errorf("%d callers", n)
	}
	want := podsOfWeb
	for i := range maxDecisions + 10 {
		want.Name = time.Duration(i).String()
		_, _ = a.decide(t.Context(), bob, want)
	}
	c := a.callers.of(bob)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.decisions) > maxDecisions {
		t.Errorf("%d decisions", len(c.decisions))
	}
}
