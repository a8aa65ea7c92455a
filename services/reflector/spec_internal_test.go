package reflector

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/internal/kube"
)

func TestFingerprintsAreEqualExactlyForEqualSpecs(t *testing.T) {
	t.Parallel()
	pods := Resource{Name: "pods"}
	for i, same := range [][2]Resource{
		{pods, {Name: "pods.v1", Cluster: "other"}},
		{pods, {Name: "pods", Transform: kube.Transform{Hints: map[string]string{"node": "spec.nodeName"}, Labels: slices.Clone(defaultLabels)}}},
		{{Name: "pods", Scope: kube.Scope{LabelSelector: "b=2, a in (y,x)"}}, {Name: "pods", Scope: kube.Scope{LabelSelector: "a in (x,y),b=2"}}},
		{{Name: "pods", Scope: kube.Scope{FieldSelector: "spec.nodeName==n,metadata.name!=x"}}, {Name: "pods", Scope: kube.Scope{FieldSelector: "metadata.name!=x,spec.nodeName=n"}}},
		{{Name: "pods", Transform: kube.Transform{Drop: []string{"status", "spec", "spec"}}}, {Name: "pods", Transform: kube.Transform{Drop: []string{"spec", "status"}}}},
		{{Name: "pods", Transform: kube.Transform{Labels: []string{"b", "a"}}}, {Name: "pods", Transform: kube.Transform{Labels: []string{"a", "b"}}}},
	} {
		if a, b := same[0].fingerprint(), same[1].fingerprint(); a != b {
			t.Errorf("%d: equal forms have the fingerprints\n%s\n%s", i, a, b)
		}
	}
	many := Resource{Name: "pods"}
	for i := range maxDropped {
		many.Transform.Drop = append(many.Transform.Drop, fmt.Sprintf("spec.a%08d", i))
	}
	more := many
	more.Transform.Drop = append(slices.Clone(many.Transform.Drop[1:]), "spec.z")
	seen := map[string]int{}
	for i, r := range []Resource{
		pods,
		{Name: "nodes"},
		many, more,
		{Name: "pods", Scope: kube.Scope{Namespace: "a"}},
		{Name: "pods", Scope: kube.Scope{LabelSelector: "a"}},
		{Name: "pods", Scope: kube.Scope{FieldSelector: "a=b"}},
		{Name: "pods", MetadataOnly: true},
		{Name: "pods", Transform: kube.Transform{Drop: []string{"spec"}}},
		{Name: "pods", Transform: kube.Transform{KeepManagedFields: true}},
		{Name: "pods", Transform: kube.Transform{DropLastApplied: true}},
		{Name: "pods", Transform: kube.Transform{Hints: map[string]string{"node": "spec.node"}}},
		{Name: "pods", Transform: kube.Transform{Labels: []string{"a"}}},
	} {
		text := r.fingerprint()
		if other, ok := seen[text]; ok {
			t.Errorf("forms %d and %d have one fingerprint: %s", other, i, text)
		}
		if seen[text] = i; len(text) > longFingerprint || strings.Contains(text, "\n") {
			t.Errorf("fingerprint %d is %d bytes long: %s", i, len(text), text)
		}
	}
}

func TestAHintOutsideTheMetadataNeedsMoreThanMetadata(t *testing.T) {
	t.Parallel()
	r := Resource{Name: "configmaps", MetadataOnly: true, Transform: kube.Transform{Hints: map[string]string{"x": "data.k", "y": "metadata.generateName"}}}
	if got := r.faults(); len(got) != 1 || got[0].Field != "hints" || !strings.Contains(got[0].Description, "data.k") {
		t.Errorf("faults %v, want the hint x", got)
	}
	r.MetadataOnly = false
	if got := r.faults(); len(got) > 0 {
		t.Errorf("whole objects: %v", got)
	}
	if got := (Resource{Name: "pods", MetadataOnly: true}).complete(); len(got.Transform.Hints) > 0 {
		t.Errorf("default hints %v of metadata", got.Transform.Hints)
	}
}

func TestWhatDiffersBetweenTwoFormsIsAllThatIsTold(t *testing.T) {
	t.Parallel()
	web := Resource{Name: "pods", Scope: kube.Scope{Namespace: "web"}, Transform: kube.Transform{Drop: []string{"status"}}}
	long := web
	long.Scope.LabelSelector = "app in (" + strings.Repeat("a", 2000) + ")"
	for _, x := range []struct{ theirs, mine, left, right string }{
		{Resource{Name: "pods"}.fingerprint(), web.fingerprint(), `drop_fields [], namespace ""`, `drop_fields ["status"], namespace "web"`},
		{Resource{Name: "pods", MetadataOnly: true}.fingerprint(), Resource{Name: "pods"}.fingerprint(), `hints {}, metadata_only true`, `hints {"node":"spec.nodeName"}, metadata_only false`},
		{long.fingerprint(), web.fingerprint(), long.fingerprint(), web.fingerprint()},
	} {
		if left, right := apart(x.theirs, x.mine); left != x.left || right != x.right {
			t.Errorf("%s | %s\nwant %s | %s", left, right, x.left, x.right)
		}
	}
}

func TestAClustersNameFitsWhateverCarriesIt(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"dev", "prod:eu-1", "böblingen", "a.b", ">", "a=b", "@"} {
		if err := checkCluster(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "a/b", "50%", "*", "a b", "\x7f", "\xff", "caf\xe9"} { // a metric's label and a message take UTF-8 only
		if checkCluster(name) == nil {
			t.Errorf("%q is taken", name)
		}
	}
}

func TestASpecThatChoosesNothingTakesEveryObject(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct {
		spec Resource
		all  bool
	}{
		"everything":        {Resource{Name: "pods"}, true},
		"metadata":          {Resource{Name: "pods", MetadataOnly: true}, true},
		"a namespace":       {Resource{Name: "pods", Scope: kube.Scope{Namespace: "a"}}, false},
		"namespaces":        {Resource{Name: "pods", Namespaces: []string{"a", "b"}}, false},
		"a label selector":  {Resource{Name: "pods", Scope: kube.Scope{LabelSelector: "app=web"}}, false},
		"a field selector":  {Resource{Name: "pods", Scope: kube.Scope{FieldSelector: "spec.nodeName=n"}}, false},
		"fields left out":   {Resource{Name: "pods", Transform: kube.Transform{Drop: []string{"status.images"}}}, true},
		"without namespace": {Resource{Name: "nodes"}, true},
	} {
		if got := tc.spec.all(); got != tc.all {
			t.Errorf("%s: all is %v, want %v", what, got, tc.all)
		}
	}
}
