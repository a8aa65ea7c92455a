package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ParseTaints reads taints as the kubelet takes them: KEY=VALUE:EFFECT, or KEY:EFFECT. The error
// names every one that is wrong.
func ParseTaints(texts []string) ([]corev1.Taint, error) {
	var out []corev1.Taint
	var faults []error
	for _, text := range texts {
		t, err := parseTaint(text)
		if slices.ContainsFunc(out, func(o corev1.Taint) bool { return o.MatchTaint(&t) }) {
			err = errors.Join(err, errors.New("there is another of its key and effect"))
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("node: taint %q: %w", text, err))
			continue
		}
		out = append(out, t)
	}
	return out, errors.Join(faults...)
}

func parseTaint(text string) (t corev1.Taint, err error) {
	rest, effect, ok := strings.Cut(text, ":")
	if !ok {
		return t, errors.New("want KEY=VALUE:EFFECT or KEY:EFFECT")
	}
	t.Key, t.Value, _ = strings.Cut(rest, "=")
	t.Effect = corev1.TaintEffect(effect)
	for _, problem := range append(validation.IsQualifiedName(t.Key), validation.IsValidLabelValue(t.Value)...) {
		err = errors.Join(err, errors.New(problem))
	}
	switch t.Effect {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
	default:
		err = errors.Join(err, fmt.Errorf("effect %q is none of NoSchedule, PreferNoSchedule and NoExecute", effect))
	}
	return t, err
}
