package reflector_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// allow lets user list and watch resource in the namespace.
func (r *real) allow(user, resource string) {
	r.t.Helper()
	rbac := func(name, kind string) kube.Resource {
		return kube.Resource{Group: "rbac.authorization.k8s.io", Version: "v1", Name: name, Kind: kind, Namespaced: true}
	}
	r.create(rbac("roles", "Role"), r.ns, fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":%q},
		"rules":[{"apiGroups":[""],"resources":[%[1]q],"verbs":["get","list","watch"]}]}`, resource))
	r.create(rbac("rolebindings", "RoleBinding"), r.ns, fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":%q},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":%[1]q},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":%q}]}`, resource, user))
}

func TestRealAForbiddenResourceLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	user := "mirror-of-" + r.ns
	r.allow(user, "configmaps")
	cfg := r.config()
	cfg.Resources = append(cfg.Resources, reflector.Resource{Name: "services.v1", Scope: kube.Scope{Namespace: r.ns}})
	nats := embeddedtest.NATS(t).URL()
	svc, _ := startOn(t, cfg, r.relay(user).client(t), nats)
	c, m := dial(t, svc), follow(t, nats, mapsInLog)
	got := reflection(t, c, "services", "forbidden", func(p *reflectorv1.Reflection) bool { return p.GetReason() != "" && p.GetNextRetryAt() != nil })
	if got.GetReason() != "FORBIDDEN" || got.GetState() != reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF {
		t.Errorf("services: %v, want FORBIDDEN and the next retry", got)
	}
	reflection(t, c, "configmaps", "watching", watching)
	r.make("a")
	m.until(t, "a config map beside it", func() bool { return len(m.live()) == 1 })
	r.allow(user, "services")
	reflection(t, c, "services", "allowed", func(p *reflectorv1.Reflection) bool { return watching(p) && p.GetReason() == "" })
	if got := reflection(t, c, "configmaps", "watching", watching); got.GetRelists() != 1 || got.GetWatches() != 1 {
		t.Errorf("configmaps: %v, want one list and one watch throughout", got)
	}
}

// occupy asks for something, and leaves the end of the request out until leave is called.
func occupy(t testing.TB, url string) (leave func()) {
	ctx, cancel := context.WithCancel(t.Context())
	beginning := strings.NewReader(strings.Repeat(" ", 64<<10)) // buffers on the way pass the headers on
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", io.MultiReader(beginning, never{ctx}))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	return func() { cancel(); <-done }
}

// never is the end of a body, which does not come.
type never struct{ context.Context }

func (n never) Read([]byte) (int, error) {
	<-n.Done()
	return 0, n.Err()
}

func TestRealTooManyRequestsAreWaitedOutWithoutAList(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	user := "mirror-of-" + r.ns
	r.allow(user, "configmaps")
	r.make("a")
	p := r.relay(user)
	nats := embeddedtest.NATS(t).URL()
	svc, _ := startOn(t, r.config(), p.client(t), nats)
	c, m := dial(t, svc), follow(t, nats, mapsInLog)
	m.until(t, "one", func() bool { return m.readable() && len(m.live()) == 1 })
	r.make("b") // a watch without an event would be a very short one
	m.until(t, "an event", func() bool { return len(m.live()) == 2 })

	group := "flowcontrol.apiserver.k8s.io"
	levels := kube.Resource{Group: group, Version: "v1", Name: "prioritylevelconfigurations", Kind: "PriorityLevelConfiguration"}
	flows := kube.Resource{Group: group, Version: "v1", Name: "flowschemas", Kind: "FlowSchema"}
	r.create(levels, "", fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"PriorityLevelConfiguration","metadata":{"name":%q},"spec":{"type":"Limited",
		"limited":{"nominalConcurrencyShares":0,"lendablePercent":0,"borrowingLimitPercent":0,"limitResponse":{"type":"Reject"}}}}`, group, r.ns))
	schema := r.create(flows, "", fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"FlowSchema","metadata":{"name":%q},"spec":{"matchingPrecedence":2,
		"priorityLevelConfiguration":{"name":%[2]q},"rules":[{"subjects":[{"kind":"User","user":{"name":%q}}],
		"resourceRules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"clusterScope":true,"namespaces":["*"]}]}]}}`, group, r.ns, user))
	remove := sync.OnceFunc(func() {
		for _, ref := range []kube.Ref{{Resource: flows, Name: r.ns}, {Resource: levels, Name: r.ns}} {
			if _, err := r.kube.Delete(t.Context(), ref, kube.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	defer remove()
	asUser := p.client(t)
	eventually(t, "the new level is in force", func() bool {
		resp, err := http.Get(p.URL + "/api/v1/namespaces/" + r.ns + "/configmaps/a")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.Header.Get("X-Kubernetes-Pf-Flowschema-Uid") == schema
	})
	// A level of no shares still serves one request at a time: this one, whose body does not come. One
	// that was itself refused is never answered: a server reads on before it answers. So there is
	// another one when it was of no use.
	var refused error
	leave := func() {}
	defer func() { leave() }()
	eventually(t, "the API server refuses", func() bool {
		leave()
		leave = occupy(t, p.URL)
		for range 20 {
			if _, refused = asUser.Get(t.Context(), r.ref("a")); kube.IsTooManyRequests(refused) {
				return true
			}
			time.Sleep(50 * time.Millisecond)
		}
		return false
	})
	if kube.RetryAfter(refused) <= 0 {
		t.Errorf("%v names no time to wait", refused)
	}
	p.cut()
	got := reflection(t, c, "configmaps", "throttled", func(p *reflectorv1.Reflection) bool { return p.GetReason() == "THROTTLED" })
	if got.GetState() != reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF || got.GetNextRetryAt() == nil {
		t.Errorf("%v, want BACKOFF and the next retry", got)
	}
	r.make("c")
	remove()
	leave()
	m.until(t, "what happened meanwhile", func() bool { return len(m.live()) == 3 })
	if lists := p.of(listed); len(lists) != 1 {
		t.Errorf("lists %v, want 1: the watch is opened again where it was", lists)
	}
}
