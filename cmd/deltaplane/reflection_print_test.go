package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

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
		if got := reflectionState(r); got != want {
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
		"pods.v1":                     {Resource: "pods.v1"},
		"b/pods.v1 (labels a in (b))": {Cluster: "b", Resource: "pods.v1", LabelSelector: "a in (b)"},
		"x (fields f=1, hints node, with managedFields, with last-applied)": {
			Resource: "x", FieldSelector: "f=1", Hints: map[string]string{"node": "spec.nodeName"}, KeepManagedFields: true, KeepLastApplied: true,
		},
	} {
		if got := specText(s); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
