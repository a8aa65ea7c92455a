package devcluster

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Annotations by which a pod says how it runs.
const (
	// RunSecondsAnnotation is how long the pod runs: whole seconds, a Go duration, or
	// "forever". Unset, a pod with restartPolicy Always runs forever, others 1 s.
	RunSecondsAnnotation = "deltaplane.io/run-seconds"
	// ExitCodeAnnotation is the exit code of its containers, 0 to 255; 0 when unset.
	ExitCodeAnnotation = "deltaplane.io/exit-code"
	// FailureRateAnnotation is the chance, 0 to 1, that a run ends with the exit code,
	// or 1 when that is unset, instead of 0.
	FailureRateAnnotation = "deltaplane.io/failure-rate"
)

// plan is what a pod's annotations say about its run.
type plan struct {
	run     time.Duration
	forever bool
	code    int32
	rate    float64 // chance of ending with code
}

// readPlan reads a pod's annotations; an error says what is allowed.
func readPlan(p *corev1.Pod) (plan, error) {
	out := plan{run: time.Second, forever: p.Spec.RestartPolicy == corev1.RestartPolicyAlways, rate: 1}
	if text, set := p.Annotations[RunSecondsAnnotation]; set {
		run, forever, err := parseRun(text)
		if err != nil {
			return out, err
		}
		out.run, out.forever = run, forever
	}
	if text, set := p.Annotations[ExitCodeAnnotation]; set {
		code, err := strconv.ParseUint(text, 10, 8)
		if err != nil {
			return out, fmt.Errorf("annotation %s is %q: want 0 to 255", ExitCodeAnnotation, text)
		}
		out.code = int32(code)
	}
	if text, set := p.Annotations[FailureRateAnnotation]; set {
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil || !(rate >= 0 && rate <= 1) {
			return out, fmt.Errorf("annotation %s is %q: want a number from 0 to 1", FailureRateAnnotation, text)
		}
		out.rate = rate
		if out.code == 0 {
			out.code = 1
		}
	}
	return out, nil
}

func parseRun(text string) (run time.Duration, forever bool, err error) {
	if text == "forever" {
		return 0, true, nil
	}
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(n) * time.Second, false, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return d, false, nil
	}
	return 0, false, fmt.Errorf("annotation %s is %q: want whole seconds, a Go duration or forever", RunSecondsAnnotation, text)
}

// draw decides how one run ends.
func (p plan) draw() int32 {
	if p.code != 0 && rand.Float64() < p.rate {
		return p.code
	}
	return 0
}
