package inspect

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

func TestAReflectionsStateTellsReasonAndProgress(t *testing.T) {
	t.Parallel()
	listing := reflectorv1.ReflectionState_REFLECTION_STATE_LISTING
	for want, r := range map[string]*reflectorv1.Reflection{
		"watching":                    {State: reflectorv1.ReflectionState_REFLECTION_STATE_WATCHING},
		"backoff FORBIDDEN":           {State: reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF, Reason: "FORBIDDEN"},
		"listing (0)":                 {State: listing, List: &reflectorv1.ListProgress{}},
		"listing (12, 3/s)":           {State: listing, List: &reflectorv1.ListProgress{Objects: 12, Rate: 3}},
		"listing (5 of about 5, 5/s)": {State: listing, List: &reflectorv1.ListProgress{Objects: 5, Rate: 5, Remaining: wrapperspb.Int64(0)}},
		"listing (1000 of about 9000, 100/s, 80s left)": {State: listing, List: &reflectorv1.ListProgress{Objects: 1000, Rate: 100, Remaining: wrapperspb.Int64(8000)}},
		"listing (7, 1/s, streaming)":                   {State: listing, List: &reflectorv1.ListProgress{Objects: 7, Rate: 1, Streaming: true}},
	} {
		if got := show.ReflectionState(r); got != want {
			t.Errorf("state is %q, want %q", got, want)
		}
	}
}

func TestReflectionsArePrintedWithErrorsAndQuarantinedKeysInFull(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	err := printReflections(&out, []*reflectorv1.Reflection{
		{
			Collection: "dev/pods.v1", State: reflectorv1.ReflectionState_REFLECTION_STATE_STANDBY, Leader: "other", Holder: "me", Objects: 3,
			ShadowRevision: &deltav1.Revision{ResourceVersion: "41"}, ShortWatches: 2, Watches: 5,
			Spec: &reflectorv1.ReflectionSpec{Namespace: "web", MetadataOnly: true, DropFields: []string{"a", "b"}},
		},
		{
			Collection: "dev/jobs.v1.batch", State: reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF, Reason: "UNREACHABLE", Leader: "me", Holder: "me",
			LastError: "refused\x1b[2J", NextRetryAt: timestamppb.New(time.Now().Add(time.Hour)),
			Quarantined: []*reflectorv1.QuarantinedKey{{Key: "default/a", Reason: "not JSON"}, {Reason: "no name"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"standby ", " 41 ", " other ", "5 (2 short)", "namespace web, without a b, metadata only",
		"backoff UNREACHABLE", " this ", `dev/jobs.v1.batch: "refused\x1b[2J"; tries again in `,
		"quarantined default/a: not JSON", "quarantined (no key): no name",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

func TestASpecIsNamedWithItsForm(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]*reflectorv1.ReflectionSpec{
		"pods.v1":               {Resource: "pods.v1"},
		"pods (namespaces a b)": {Resource: "pods", Namespaces: []string{"a", "b"}},
		"pods (namespaces a b c d e and 2 more, metadata only)": {Resource: "pods", Namespaces: []string{"a", "b", "c", "d", "e", "f", "g"}, MetadataOnly: true},
		"b/pods.v1 (labels a in (b))":                           {Cluster: "b", Resource: "pods.v1", LabelSelector: "a in (b)"},
		"x (fields f=1, hints node, with managedFields, without last-applied)": {
			Resource: "x", FieldSelector: "f=1", Hints: map[string]string{"node": "spec.nodeName"}, KeepManagedFields: true, DropLastApplied: true,
		},
	} {
		if got := specText(s); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestEqualFaultsOfManyCollectionsAreOneParagraph(t *testing.T) {
	t.Parallel()
	var list []*reflectorv1.Reflection
	for i, kind := range []string{"Role", "Pod", "Node", "Secret", "Event"} {
		resource, version, group := strings.ToLower(kind)+"s", "v1", ""
		path, dotted := "/api/v1/", ""
		if i == 0 {
			group = "rbac.authorization.k8s.io"
			path, dotted = "/apis/"+group+"/v1/", "."+group
		}
		name := "dev/" + resource + "." + version + dotted
		list = append(list, &reflectorv1.Reflection{
			Collection: name, State: reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF, Reason: "FORBIDDEN",
			LastError: "list " + name + ` at "0": kube: LIST ` + path + resource + ": 403 Forbidden: " + resource + dotted +
				` is forbidden: User "u" cannot list resource "` + resource + `" in API group "` + group + `" at the cluster scope`,
			NextRetryAt: timestamppb.New(time.Now().Add(time.Duration(5-i) * time.Hour)),
		})
	}
	list = append(list, &reflectorv1.Reflection{Collection: "dev/leases.v1", Reason: "UNREACHABLE", LastError: "refused"})
	var out strings.Builder
	if err := printReflections(&out, list); err != nil {
		t.Fatal(err)
	}
	paragraphs := strings.Split(strings.TrimSpace(out.String()), "\n\n")[1:]
	if len(paragraphs) != 2 || !strings.HasPrefix(paragraphs[0], "5 collections, dev/roles.v1.rbac.authorization.k8s.io, dev/pods.v1, dev/nodes.v1 and 2 more: list ") ||
		!strings.Contains(paragraphs[0], "tries again in 59m") && !strings.Contains(paragraphs[0], "tries again in 1h") || !strings.HasPrefix(paragraphs[1], "dev/leases.v1: refused") {
		t.Errorf("%d paragraphs:\n%s", len(paragraphs), out.String())
	}
}
