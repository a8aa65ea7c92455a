package reflector_test

import (
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// Every field of a spec reaches the API server's queries or the records, whether they come by a
// list or by a watch.
func TestEveryFieldOfASpecCounts(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	const extra = `"data":{"owner":"joe","secret":"x"}`
	meta := `"team":"a","other":"b"},"managedFields":[{"manager":"m"}],"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}"` // behind the labels
	f.put("configmaps", "web", "listed", meta, extra)
	nats := embeddedtest.NATS(t).URL()
	svc, _ := start(t, quick(), f.URL, nats)
	c := dial(t, svc)
	resp := add(t, c, &reflectorv1.ReflectionSpec{
		Resource: "configmaps", Namespace: "web", LabelSelector: "team=a", FieldSelector: "metadata.name!=x", DropFields: []string{"data.secret"},
		KeepManagedFields: true, Hints: map[string]string{"owner": "data.owner"}, Labels: []string{"team"},
	})
	if !resp.GetAdded() {
		t.Errorf("AddReflection() = %v", resp)
	}
	reflection(t, c, "configmaps", "the watch", watching)
	m := follow(t, nats, configmaps)
	f.put("configmaps", "web", "watched", meta, extra)
	m.until(t, "both", func() bool { return len(m.live()) == 2 })
	for name, rv := range map[string]string{"listed": "101", "watched": "102"} {
		r, _ := m.get(delta.Key("web/" + name))
		want := `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"` + name + `","uid":"u-` + name + `","resourceVersion":"` + rv + `","labels":{` + meta +
			`},"namespace":"web"},"data":{"owner":"joe"}}`
		if diff := cmp.Diff(want, string(r.Payload)); diff != "" {
			t.Errorf("%s: payload (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(map[string][]string{"owner": {"joe"}}, r.Hints); diff != "" {
			t.Errorf("%s: hints (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(map[string][]string{"team": {"a"}}, r.Labels); diff != "" {
			t.Errorf("%s: labels (-want +got):\n%s", name, diff)
		}
	}
	const path = "/api/v1/namespaces/web/configmaps"
	for _, request := range []string{path, "watch " + path} {
		all := f.requests(request)
		if len(all) != 1 {
			t.Fatalf("%d requests of %s, want 1", len(all), request)
		}
		q := all[0].query
		got := url.Values{"labelSelector": q["labelSelector"], "fieldSelector": q["fieldSelector"]}
		if diff := cmp.Diff(url.Values{"labelSelector": {"team=a"}, "fieldSelector": {"metadata.name!=x"}}, got); diff != "" {
			t.Errorf("%s asked (-want +got):\n%s", request, diff)
		}
	}
}
