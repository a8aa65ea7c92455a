package show

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tidwall/gjson"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// column is one cell of an object's row, read straight from its JSON.
type column struct {
	name string
	cell func(*indexv1.Object) string
}

func path(name, path string) column {
	return column{name, func(o *indexv1.Object) string { return Dash(gjson.GetBytes(o.GetPayload(), path).String()) }}
}

func number(name, path string) column {
	return column{name, func(o *indexv1.Object) string { return fmt.Sprint(gjson.GetBytes(o.GetPayload(), path).Int()) }}
}

// Dash is s, or a dash in place of nothing.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Printable is text that others chose, as a terminal and a table may have it: quoted when it holds
// control characters.
func Printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

var age = column{"AGE", func(o *indexv1.Object) string {
	created := gjson.GetBytes(o.GetPayload(), "metadata.creationTimestamp").Time()
	if created.IsZero() {
		return "-"
	}
	return ShortDuration(time.Since(created))
}}

// columnsOf chooses columns by the kind of the first object.
func columnsOf(payload []byte, wide bool) []column {
	var columns []column
	if gjson.GetBytes(payload, "metadata.namespace").Exists() {
		columns = append(columns, path("NAMESPACE", "metadata.namespace"))
	}
	columns = append(columns, path("NAME", "metadata.name"))
	switch gjson.GetBytes(payload, "kind").String() {
	case "Pod":
		columns = append(columns, column{"READY", podReady}, column{"STATUS", podStatus}, column{"RESTARTS", podRestarts}, age)
		if wide {
			columns = append(columns, path("IP", "status.podIP"), path("NODE", "spec.nodeName"))
		}
	case "Job":
		columns = append(columns, column{"STATUS", jobStatus}, column{"COMPLETIONS", jobCompletions},
			number("ACTIVE", "status.active"), number("FAILED", "status.failed"), age)
		if wide {
			columns = append(columns, number("READY", "status.ready"), number("TERMINATING", "status.terminating"))
		}
	case "Node":
		columns = append(columns, column{"STATUS", nodeStatus}, column{"TAINTS", nodeTaints}, age)
		if wide {
			columns = append(columns, path("ZONE", `metadata.labels.topology\.kubernetes\.io/zone`), path("RUNTIME", "status.nodeInfo.containerRuntimeVersion"), path("VERSION", "status.nodeInfo.kubeletVersion"))
		}
	case "Lease":
		columns = append(columns, path("HOLDER", "spec.holderIdentity"), path("RENEWED", "spec.renewTime"), age)
	default:
		columns = append(columns, age)
	}
	if wide {
		columns = append(columns, path("VERSION-SEEN", "metadata.resourceVersion"), path("UID", "metadata.uid"))
	}
	return columns
}

func podReady(o *indexv1.Object) string {
	ready, total := 0, 0
	for _, c := range gjson.GetBytes(o.GetPayload(), "spec.containers.#.name").Array() {
		total++
		if gjson.GetBytes(o.GetPayload(), fmt.Sprintf("status.containerStatuses.#(name==%q).ready", c.String())).Bool() {
			ready++
		}
	}
	return fmt.Sprintf("%d/%d", ready, total)
}

func podStatus(o *indexv1.Object) string {
	if gjson.GetBytes(o.GetPayload(), "metadata.deletionTimestamp").Exists() {
		return "Terminating"
	}
	if reason := gjson.GetBytes(o.GetPayload(), "status.reason").String(); reason != "" {
		return Printable(reason)
	}
	if text := initStatus(o); text != "" {
		return text
	}
	for _, list := range []string{"initContainerStatuses", "containerStatuses"} {
		if reason := gjson.GetBytes(o.GetPayload(), "status."+list+".#.state.waiting.reason").Get("0").String(); reason != "" {
			return Printable(reason)
		}
	}
	return Dash(gjson.GetBytes(o.GetPayload(), "status.phase").String())
}

// initStatus is the state of the first init container that holds up the pod, in kubectl's words:
// "Init:1/2" while it runs, "Init:Error" or "Init:CrashLoopBackOff" when it fails; nothing when
// none does.
func initStatus(o *indexv1.Object) string {
	statuses := gjson.GetBytes(o.GetPayload(), "status.initContainerStatuses").Array()
	for i, s := range statuses {
		ended, waits := s.Get("state.terminated"), s.Get("state.waiting.reason").String()
		switch {
		case ended.Exists() && ended.Get("exitCode").Int() == 0, s.Get("started").Bool() && s.Get("ready").Bool():
			continue
		case ended.Exists():
			return "Init:" + Printable(cmp.Or(ended.Get("reason").String(), fmt.Sprintf("ExitCode:%d", ended.Get("exitCode").Int())))
		case waits != "" && waits != "PodInitializing":
			return "Init:" + Printable(waits)
		}
		return fmt.Sprintf("Init:%d/%d", i, len(statuses))
	}
	return ""
}

func podRestarts(o *indexv1.Object) string {
	list := "containerStatuses"
	if initStatus(o) != "" {
		list = "initContainerStatuses"
	}
	var n int64
	for _, c := range gjson.GetBytes(o.GetPayload(), "status."+list+".#.restartCount").Array() {
		n += c.Int()
	}
	return fmt.Sprint(n)
}

// condition is whether the object has the condition with status True.
func condition(o *indexv1.Object, kind string) bool {
	return gjson.GetBytes(o.GetPayload(), fmt.Sprintf("status.conditions.#(type==%q).status", kind)).String() == "True"
}

func jobStatus(o *indexv1.Object) string {
	for _, kind := range []string{"Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet"} {
		if condition(o, kind) {
			return kind
		}
	}
	if gjson.GetBytes(o.GetPayload(), "metadata.deletionTimestamp").Exists() {
		return "Terminating"
	}
	return "Running"
}

func jobCompletions(o *indexv1.Object) string {
	succeeded := gjson.GetBytes(o.GetPayload(), "status.succeeded").Int()
	if wanted := gjson.GetBytes(o.GetPayload(), "spec.completions"); wanted.Exists() {
		return fmt.Sprintf("%d/%d", succeeded, wanted.Int())
	}
	return fmt.Sprintf("%d/1 of %d", succeeded, gjson.GetBytes(o.GetPayload(), "spec.parallelism").Int())
}

func nodeStatus(o *indexv1.Object) string {
	text := "NotReady"
	if condition(o, "Ready") {
		text = "Ready"
	}
	if gjson.GetBytes(o.GetPayload(), "spec.unschedulable").Bool() {
		text += ",SchedulingDisabled"
	}
	if gjson.GetBytes(o.GetPayload(), `metadata.annotations.deltaplane\.io/stopped`).String() == "true" {
		text += ",Stopped" // its agent was instructed to fall silent; the cluster may not have noticed yet
	}
	return text
}

func nodeTaints(o *indexv1.Object) string {
	var taints []string
	for _, t := range gjson.GetBytes(o.GetPayload(), "spec.taints").Array() {
		taints = append(taints, t.Get("key").String()+":"+t.Get("effect").String())
	}
	return Dash(strings.Join(taints, ","))
}

// ShortDuration is a duration as people read it in tables: its two greatest units at most.
func ShortDuration(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}
