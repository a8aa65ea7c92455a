package criruntime

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"
)

// Annotations by which a pod says what its containers do; the package's text has the table.
const (
	// RunSecondsAnnotation is how long a container runs: whole seconds, a Go duration, or "forever".
	RunSecondsAnnotation = "deltaplane.io/run-seconds"
	// ExitCodeAnnotation is the exit code, 0 to 255; 0 when unset.
	ExitCodeAnnotation = "deltaplane.io/exit-code"
	// FailureRateAnnotation is the chance, 0 to 1, that a run ends with the exit code,
	// or 1 when that is unset, instead of 0.
	FailureRateAnnotation = "deltaplane.io/failure-rate"
	// ExitReasonAnnotation is the reason of an end that is not 0.
	ExitReasonAnnotation = "deltaplane.io/exit-reason"
	// IgnoreTermAnnotation, "true", makes SIGTERM do nothing.
	IgnoreTermAnnotation = "deltaplane.io/ignore-term"
	// StartErrorAnnotation makes StartContainer fail with its text.
	StartErrorAnnotation = "deltaplane.io/start-error"
	// LogAnnotation is a line for the container's log.
	LogAnnotation = "deltaplane.io/log"
	// TerminationMessageAnnotation is what the container leaves in its termination message file.
	TerminationMessageAnnotation = "deltaplane.io/termination-message"
	// ContainerKindAnnotation, set by the agent, is "init" for an init container.
	ContainerKindAnnotation = "deltaplane.io/container-kind"
	// RestartPolicyAnnotation, set by the agent, is the pod's restart policy.
	RestartPolicyAnnotation = "deltaplane.io/restart-policy"
)

const messagePathAnnotation = "io.kubernetes.container.terminationMessagePath"

// plan is what a container's annotations say about its runs.
type plan struct {
	run        time.Duration
	forever    bool
	ignoreTerm bool
	code       int32
	rate       float64 // chance of ending with code

	// Rare, so that most containers pay for one pointer.
	extra *extra
}

type extra struct {
	reason, startError, log, message string
}

// annotations are a container's and its sandbox's; the container's win.
type annotations struct {
	name           string
	init           bool
	own, sandboxes map[string]string
}

func (a annotations) get(key string) (text, name string, set bool) {
	named := key + "." + a.name
	for _, m := range []map[string]string{a.own, a.sandboxes} {
		if text, set := m[named]; set {
			return text, named, true
		}
	}
	if a.init {
		return "", key, false
	}
	for _, m := range []map[string]string{a.own, a.sandboxes} {
		if text, set := m[key]; set {
			return text, key, true
		}
	}
	return "", key, false
}

// readPlan reads annotations; an error names one and says what it allows.
func readPlan(name string, own, sandboxes map[string]string) (plan, error) {
	a := annotations{name: name, own: own, sandboxes: sandboxes, init: own[ContainerKindAnnotation] == "init"}
	out := defaultPlan(a)
	if text, key, set := a.get(RunSecondsAnnotation); set {
		run, forever, err := parseRun(key, text)
		if err != nil {
			return out, err
		}
		out.run, out.forever = run, forever
	}
	if text, key, set := a.get(ExitCodeAnnotation); set {
		code, err := strconv.ParseUint(text, 10, 8)
		if err != nil {
			return out, fmt.Errorf("annotation %s is %q: want 0 to 255", key, text)
		}
		out.code = int32(code)
	}
	if text, key, set := a.get(FailureRateAnnotation); set {
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil || !(rate >= 0 && rate <= 1) {
			return out, fmt.Errorf("annotation %s is %q: want a number from 0 to 1", key, text)
		}
		out.rate = rate
		if out.code == 0 {
			out.code = 1
		}
	}
	if text, key, set := a.get(IgnoreTermAnnotation); set {
		ignore, err := strconv.ParseBool(text)
		if err != nil {
			return out, fmt.Errorf("annotation %s is %q: want true or false", key, text)
		}
		out.ignoreTerm = ignore
	}
	var x extra
	x.reason, _, _ = a.get(ExitReasonAnnotation)
	x.startError, _, _ = a.get(StartErrorAnnotation)
	x.log, _, _ = a.get(LogAnnotation)
	x.message, _, _ = a.get(TerminationMessageAnnotation)
	if x != (extra{}) {
		out.extra = &x
	}
	return out, nil
}

func defaultPlan(a annotations) plan {
	out := plan{rate: 1}
	switch policy := a.own[RestartPolicyAnnotation]; {
	case a.init:
	case policy == "" || policy == "Always":
		out.forever = true
	default:
		out.run = time.Second
	}
	return out
}

func parseRun(key, text string) (run time.Duration, forever bool, err error) {
	if text == "forever" {
		return 0, true, nil
	}
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(n) * time.Second, false, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return min(d, longest*time.Second), false, nil
	}
	return 0, false, fmt.Errorf("annotation %s is %q: want whole seconds, a Go duration or forever", key, text)
}

// draw decides how one run ends.
func (p plan) draw() int32 {
	if p.code != 0 && rand.Float64() < p.rate {
		return p.code
	}
	return 0
}
