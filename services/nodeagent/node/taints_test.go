package node_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/node"
)

func TestTaintsAreReadAsTheKubeletTakesThem(t *testing.T) {
	t.Parallel()
	got, err := node.ParseTaints([]string{"example.org/gpu=a100:NoSchedule", "dedicated:NoExecute", "dedicated=:PreferNoSchedule"})
	want := []corev1.Taint{
		{Key: "example.org/gpu", Value: "a100", Effect: corev1.TaintEffectNoSchedule},
		{Key: "dedicated", Effect: corev1.TaintEffectNoExecute},
		{Key: "dedicated", Effect: corev1.TaintEffectPreferNoSchedule},
	}
	if diff := cmp.Diff(got, want); err != nil || diff != "" {
		t.Errorf("%v (-got +want):\n%s", err, diff)
	}
	if got, err := node.ParseTaints(nil); got != nil || err != nil {
		t.Errorf("of none: %v, %v", got, err)
	}
}

func TestEveryWrongTaintIsNamed(t *testing.T) {
	t.Parallel()
	_, err := node.ParseTaints([]string{"good:NoSchedule", "alone", "a:Never", "-a=b:NoSchedule", "a=?:NoSchedule", ":NoSchedule", "good=again:NoSchedule", ""})
	if err == nil {
		t.Fatal("ParseTaints() = nil")
	}
	for _, want := range []string{
		`taint "alone": want KEY=VALUE:EFFECT`, `taint "a:Never": effect "Never"`, `taint "-a=b:NoSchedule": `, `taint "a=?:NoSchedule": `,
		`taint ":NoSchedule": `, `taint "good=again:NoSchedule": there is another`, `taint "": `,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not hold %q:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), `"good:NoSchedule"`) {
		t.Errorf("a good taint is named: %v", err)
	}
}
