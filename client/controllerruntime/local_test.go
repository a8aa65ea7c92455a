package controllerruntime

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/deltaplane/deltaplane/client"
	dptest "github.com/deltaplane/deltaplane/client/testing"
)

// answers asks a transport on an environment.
type answers struct {
	t      *testing.T
	client *http.Client
	api    string
}

func newAnswers(t *testing.T, env *dptest.Env) answers {
	t.Helper()
	op, err := New(env.Index(), nil, Options{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := restConfig(env)
	base, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	mapper, err := apiutil.NewDynamicRESTMapper(cfg, base)
	if err != nil {
		t.Fatal(err)
	}
	return answers{t, &http.Client{Transport: &transport{op: op, mapper: mapper, next: http.DefaultTransport, at: map[string]client.Position{}}}, env.API()}
}

// get asks for a path, and returns the status and what is read until enough is there.
func (a answers) get(path, accept string, enough func(string) bool) (int, string) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), 30*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.api+path, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	resp, err := a.client.Do(r)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	var text strings.Builder
	part := make([]byte, 4096)
	for !enough(text.String()) {
		n, err := resp.Body.Read(part)
		text.Write(part[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			a.t.Fatalf("%s: %v after %s", path, err, text.String())
		}
	}
	return resp.StatusCode, text.String()
}

func all(string) bool { return false }

func has(what ...string) func(string) bool {
	return func(s string) bool {
		return !slices.ContainsFunc(what, func(w string) bool { return !strings.Contains(s, w) })
	}
}

func TestListsAndWatchesOfTheKubernetesAPIAreAnsweredByTheIndex(t *testing.T) {
	env := dptest.Start(t, configMaps())
	mirror(t, env, step("a", "1"), step("b", "1"))
	a := newAnswers(t, env)
	const maps = "/api/v1/namespaces/default/configmaps"
	const metadataOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	want := func(path, accept string, enough func(string) bool, status int, texts ...string) string {
		t.Helper()
		got, text := a.get(path, accept, enough)
		if got != status || !has(texts...)(text) {
			t.Errorf("%s: %d, %s", path, got, text)
		}
		return text
	}
	list := want(maps, "", all, 200, `"kind":"ConfigMapList"`, `"name":"a"`, `"name":"b"`)
	version := list[strings.Index(list, `"resourceVersion":"`)+len(`"resourceVersion":"`):]
	version = version[:strings.Index(version, `"`)]
	want(maps+"?fieldSelector=metadata.name%3Da", metadataOnly, all, 200, `"kind":"PartialObjectMetadataList"`, `"kind":"PartialObjectMetadata"`)
	env.Apply(step("a", "2"))
	env.Delete("configmaps", "default/b")
	want(maps+"?watch=true&resourceVersion="+version, "", has("DELETED"), 200, `{"type":"MODIFIED","object":`, `"step":"2"`, `{"type":"DELETED","object":`)
	want(maps+"?watch=true&resourceVersion=1", "", all, 410, "too old resource version: 1", `"reason":"Expired"`)
	want(maps+"?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "", has("BOOKMARK"), 200, `"k8s.io/initial-events-end":"true"`, `{"type":"ADDED"`)
	want(maps+"?labelSelector=a%3D%3D%3Db", "", all, 400, `"reason":"BadRequest"`)
	want("/api/v1/namespaces/default", "", all, 200, `"kind":"Namespace"`)
	want("/api/v1/pods", "", all, 200, `"kind":"PodList"`) // the index does not have these
}

// What a local store keeps is as new as the reconcile must see, and takes Go index functions.
func TestLocalKindsOfAManager(t *testing.T) {
	env := dptest.Start(t, configMaps())
	for n, options := range []Options{{Local: true}, {LocalFor: []crclient.Object{&corev1.ConfigMap{}}}} {
		before, after := fmt.Sprintf("%d begun", n), fmt.Sprintf("%d done", n)
		o := newOperated(t, env, options)
		byStep := func(obj crclient.Object) []string { return []string{obj.GetAnnotations()["step"]} }
		if err := o.mgr.GetFieldIndexer().IndexField(t.Context(), &corev1.ConfigMap{}, "step", byStep); err != nil {
			t.Fatal(err)
		}
		c := o.mgr.GetClient()
		result := make(chan string, 10)
		r := Reconciler(o.op, reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			var have corev1.ConfigMap
			if err := c.Get(ctx, req.NamespacedName, &have); err != nil {
				return reconcile.Result{}, err
			}
			switch have.Annotations["step"] {
			case before:
				have.Annotations["step"] = after
				if err := c.Update(ctx, &have); err != nil {
					return reconcile.Result{}, err
				}
			case after: // the answer of the update was lost
			default:
				return reconcile.Result{}, nil
			}
			var list corev1.ConfigMapList
			err := c.List(ctx, &list, crclient.MatchingFields{"step": after})
			if len(list.Items) != 1 {
				t.Errorf("%d ConfigMaps are of step %s: %v", len(list.Items), after, err)
			}
			result <- req.Name
			return reconcile.Result{}, err
		}))
		o.controls(t, "local", r, controller.Options{})
		stop := env.Go(o.mgr.Start)
		env.Apply(step("a", before))
		if name := <-result; name != "a" {
			t.Errorf("%s ran", name)
		}
		stop()
	}
}

// A reflector that lists again, behind a gap for one, may be answered by a replica that lags.
func TestAWatchThatBeginsAgainIsNotOlder(t *testing.T) {
	cfg := configMaps()
	cfg.Seed, cfg.Rates = 1, dptest.Rates{
		StaleReads: 0.5, FailedReads: -1, BrokenStreams: -1, DuplicateKeys: -1, LateKeys: -1, LostLeases: -1,
		KilledWorkers: -1, Conflicts: -1, LostAnswers: -1, RefusedCalls: -1,
	}
	env := dptest.Start(t, cfg)
	mirror(t, env, step("a", "0"))
	a := newAnswers(t, env)
	const begin = "/api/v1/namespaces/default/configmaps?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
	for n := range 20 {
		now := strconv.Itoa(n + 1)
		newest := has(`"step":"` + now + `"`)
		env.Apply(step("a", now))
		if _, text := a.get(begin, "", newest); !newest(text) {
			t.Fatalf("step %s does not arrive: %s", now, text)
		}
		if _, text := a.get(begin, "", has("k8s.io/initial-events-end")); !newest(text) {
			t.Fatalf("the watch of step %s begins again before it: %s", now, text)
		}
	}
}

func TestRefusalsOfTheIndexAreStatusesOfTheAPIServer(t *testing.T) {
	for code, is := range map[codes.Code]func(error) bool{
		codes.InvalidArgument: apierrors.IsBadRequest, codes.Unauthenticated: apierrors.IsUnauthorized, codes.PermissionDenied: apierrors.IsForbidden,
		codes.NotFound: apierrors.IsNotFound, codes.Unavailable: apierrors.IsServiceUnavailable, codes.Internal: apierrors.IsInternalError,
	} {
		s := statusOf(&client.Error{Op: "watch", Code: code})
		if !is(&apierrors.StatusError{ErrStatus: *s}) || s.Code < 400 || !strings.Contains(s.Message, "watch") {
			t.Errorf("%s: %+v", code, s)
		}
	}
	behind := statusOf(&client.Error{Code: codes.DeadlineExceeded, Reason: "REVISION_NOT_REACHED"})
	if behind.Code != http.StatusServiceUnavailable || behind.Details == nil || behind.Details.RetryAfterSeconds != 1 {
		t.Errorf("an index that is behind: %+v", behind)
	}
}
