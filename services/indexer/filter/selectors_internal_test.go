package filter

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

func TestSelectorsThatAreTooLargeAreRefused(t *testing.T) {
	t.Parallel()
	many := func(n int, term string) string { return strings.TrimSuffix(strings.Repeat(term+",", n), ",") }
	for name, text := range map[string]string{
		"10,000 requirements": many(10_000, "a!=b"),
		"10,000 values":       "a in (" + many(10_000, "b") + ")",
		"one long term":       strings.Repeat("a", maxSelector+1),
	} {
		if _, err := parseLabels(text); rpc.Violations(rpc.Status(err, nil))["label_selector"] == "" {
			t.Errorf("label selector with %s: %.100v", name, err)
		}
		if _, err := parseFields(text); rpc.Violations(rpc.Status(err, nil))["field_selector"] == "" {
			t.Errorf("field selector with %s: %.100v", name, err)
		}
	}
	if _, err := parseLabels(many(MaxTerms, "a!=b")); err != nil {
		t.Errorf("%d terms: %v", MaxTerms, err)
	}
}

func FuzzSelectorsMeanWhatKubernetesTakesThemToMean(f *testing.F) {
	for _, text := range []string{"a=b,c!=d", "a in (b,c),!d", "a>1,b<2", "a notin (,b)", "a,", "x in (", "==", strings.Repeat("!a,", 9) + "b"} {
		f.Add(text, "a=b,c=d")
	}
	f.Fuzz(func(t *testing.T, text, pairs string) {
		set := map[string]string{}
		for pair := range strings.SplitSeq(pairs, ",") {
			if name, value, ok := strings.Cut(pair, "="); ok {
				set[name] = value
			}
		}
		got, err := parseLabels(text)
		want, wantErr := labels.Parse(text)
		if err != nil {
			if wantErr == nil && checkSelector("", text) == nil {
				t.Fatalf("%q is refused: %v", text, err)
			}
			return
		}
		if l := labelsOf(set); wantErr != nil || (got == nil || got.matches(l)) != want.Matches(labels.Set(set)) {
			t.Errorf("%q of %v: %v, want %v (%v)", text, set, got == nil || got.matches(l), want.Matches(labels.Set(set)), wantErr)
		}
	})
}

func FuzzSelectorsMasksAndFields(f *testing.F) {
	for _, s := range []string{"", "app=web,tier!=db", "app in (a,b),!x", "spec.nodeName=n1,metadata.name!=a", "metadata.labels", "a.b.c", "n>3", "\xff", "=="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if l, err := parseLabels(text); err == nil && l != nil {
			l.matches(labelsOf(map[string]string{"app": "web", "n": "4"}))
		}
		_, _ = parseFields(text)
		p, err := message.Project(indexv1.View_VIEW_UNSPECIFIED, &fieldmaskpb.FieldMask{Paths: []string{text, "metadata.name"}})
		if err != nil {
			return
		}
		out := p.Payload([]byte(`{"metadata":{"name":"a","labels":{"app":"web"}},"spec":{"list":[{"x":1},2]}}`))
		if len(out) == 0 {
			t.Errorf("mask %q leaves nothing, not even an object", text)
		}
	})
}

func labelsOf(set map[string]string) *store.Labels {
	var pairs []store.Pair
	for name, value := range set {
		pairs = append(pairs, store.Pair{Name: name, Value: value})
	}
	return store.NewLabels(pairs)
}
