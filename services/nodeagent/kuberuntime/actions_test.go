package kuberuntime_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

// decision is one row: a pod of init containers and containers ("s*" is a sidecar), what of it was
// observed, and what is to be done. Observed are NAME=STATE, newest first: R running, R! by another
// definition, C created, U unknown, E0 exited with 0; @old after it says that it is in an older
// sandbox.
type decision struct {
	name     string
	policy   corev1.RestartPolicy
	inits    string
	sandbox  string // ready, none, dead/ATTEMPT, two, bridge
	observed string
	want     string
	pod      func(*corev1.Pod)
	probes   map[string]kuberuntime.Verdict // by the containers' names
}

const (
	always    = corev1.RestartPolicyAlways
	onFailure = corev1.RestartPolicyOnFailure
	never     = corev1.RestartPolicyNever
)

func TestDecisionsOfComputePodActions(t *testing.T) {
	t.Parallel()
	check(t, []decision{
		{name: "everything is good", policy: always, observed: "a=R b=R c=R", want: ""},
		{name: "a new pod", policy: always, sandbox: "none", want: "kill-pod sandbox#0 start[0 1 2]"},
		{name: "Always: what ended is started", policy: always, observed: "a=E0 b=E111 c=R", want: "start[0 1]"},
		{name: "OnFailure: what failed is started", policy: onFailure, observed: "a=E0 b=E111 c=R", want: "start[1]"},
		{name: "OnFailure: what was only created is started", policy: onFailure, observed: "a=E0 b=C c=R", want: "start[1]"},
		{name: "Never: what ended stays", policy: never, observed: "a=E0 b=E111 c=R", want: ""},
		{name: "Always: dead sandbox", policy: always, sandbox: "dead/0", observed: "a=R b=R c=R", want: "kill-pod sandbox#1 start[0 1 2]"},
		{name: "OnFailure: dead sandbox, one is done", policy: onFailure, sandbox: "dead/0", observed: "a=R b=E0 c=R", want: "kill-pod sandbox#1 start[0 2]"},
		{name: "the definition changed", policy: always, observed: "a=R b=R! c=R", want: "stop[b] start[1]"},
		{name: "the definition changed, Never", policy: never, observed: "a=R b=R! c=R", want: "stop[b] start[1]"},
		{name: "Never: dead sandbox, all ended", policy: never, sandbox: "dead/1", observed: "a=E0 b=E0 c=E0", want: "kill-pod"},
		{name: "OnFailure: dead sandbox, all succeeded", policy: onFailure, sandbox: "dead/1", observed: "a=E0 b=E0 c=E0", want: "kill-pod"},
		{name: "Never: dead sandbox, all may have run", policy: never, sandbox: "dead/1", observed: "a=U b=U c=U", want: "kill-pod"},
		{name: "Never: dead sandbox, one never ran", policy: never, sandbox: "dead/1", observed: "a=E137 b=C", want: "kill-pod sandbox#2 start[1 2]"},
		{name: "Never: dead sandbox, nothing ever ran", policy: never, sandbox: "dead/2", want: "kill-pod sandbox#3 start[0 1 2]"},
		{name: "unknown state, Always", policy: always, observed: "a=R b=U c=R", want: "stop[b] start[1]"},
		{name: "unknown state, OnFailure", policy: onFailure, observed: "a=R b=U c=R", want: "stop[b] start[1]"},
		{name: "unknown state, Never: it may have run", policy: never, observed: "a=R b=U c=R", want: "stop[b]"},
		{name: "unknown state, Never, alone", policy: never, observed: "a=E0 b=U c=E0", want: "kill-pod"},
		{name: "created state", policy: never, observed: "a=R b=C c=R", want: "start[1]"},
		{name: "all done: the pod ends", policy: never, observed: "a=E0 b=E1 c=E0", want: "kill-pod"},
		{name: "two sandboxes are ready", policy: always, sandbox: "two", observed: "a=R b=R c=R", want: "kill-pod sandbox#2 start[0 1 2]"},
		{
			name: "the pod is on the node's network, its sandbox is not", policy: always, sandbox: "bridge", observed: "a=R b=R c=R",
			want: "kill-pod sandbox#1 start[0 1 2]", pod: func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		},
		{name: "two instances of a name: the newest counts", policy: always, observed: "a=R a=E1 b=R c=R", want: ""},
		{name: "two instances run: the older is stopped", policy: always, observed: "a=R a=R b=R c=R", want: "stop[a]"},
		{name: "two instances, the older runs or may", policy: never, observed: "a=E1 a=R b=R b=U c=R", want: "stop[a b]"},
		{
			name: "a pod that is being deleted starts nothing", policy: always, observed: "a=E0 b=R c=R", want: "",
			pod: func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) },
		},
		{
			name: "a pod that is being deleted gets no sandbox", policy: always, sandbox: "dead/0", observed: "a=R b=R c=R", want: "kill-pod",
			pod: func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) },
		},
	})
}

func TestDecisionsOfComputePodActionsWithInitContainers(t *testing.T) {
	t.Parallel()
	rows := []decision{
		{name: "initialized: start all", policy: always, observed: "i2=E0 i1=E0 i0=E0", want: "start[0 1 2]"},
		{name: "none was started", policy: always, want: "init[0]"},
		{name: "in progress", policy: always, observed: "i2=R i1=E0 i0=E0", want: ""},
		{name: "the next", policy: always, observed: "i0=E0", want: "init[1]"},
		{name: "dead sandbox", policy: always, sandbox: "dead/0", observed: "i2=E0 i1=E0 i0=E0", want: "kill-pod sandbox#1 init[0]"},
		{name: "failed, Always", policy: always, observed: "i2=E137 i1=E0 i0=E0", want: "init[2]"},
		{name: "failed, OnFailure", policy: onFailure, observed: "i2=E137 i1=E0 i0=E0", want: "init[2]"},
		{name: "failed, Never", policy: never, observed: "i2=E137 i1=E0 i0=E0", want: "kill-pod"},
		{name: "unknown, Always", policy: always, observed: "i2=U i1=E0 i0=E0", want: "stop[i2] init[2]"},
		{name: "unknown, OnFailure", policy: onFailure, observed: "i2=U i1=E0 i0=E0", want: "stop[i2] init[2]"},
		{name: "unknown, Never", policy: never, observed: "i2=U i1=E0 i0=E0", want: "kill-pod"},
		{name: "dead sandbox, Never, initialized", policy: never, sandbox: "dead/0", observed: "i2=E0 i1=E0 i0=E0", want: "kill-pod sandbox#1 init[0]"},
		{name: "dead sandbox, Never, failed", policy: never, sandbox: "dead/0", observed: "i2=E137 i1=E0 i0=E0", want: "kill-pod"},
		{name: "dead sandbox, Never, in progress", policy: never, sandbox: "dead/0", observed: "i1=R i0=E0", want: "kill-pod"},
		{name: "dead sandbox, Never, one has run", policy: never, sandbox: "dead/0", observed: "a=E0 i2=E0 i1=E0 i0=E0", want: "kill-pod sandbox#1 init[0]"},
		{name: "dead sandbox, Never, all have run", policy: never, sandbox: "dead/0", observed: "a=E0 b=E0 c=E137 i2=E0 i1=E0 i0=E0", want: "kill-pod"},
		{name: "dead sandbox, Never, none visible", policy: never, sandbox: "dead/0", want: "kill-pod sandbox#1 init[0]"},
		{name: "dead sandbox, failed, OnFailure", policy: onFailure, sandbox: "dead/0", observed: "i2=E137 i1=E0 i0=E0", want: "kill-pod sandbox#1 init[0]"},
		{name: "the first are gone, the last runs", policy: always, observed: "i2=R", want: ""},
		{name: "created", policy: always, observed: "i2=C i1=E0 i0=E0", want: "init[2]"},
		{name: "all are gone, the containers run", policy: always, observed: "a=R b=R c=E1", want: "start[2]"},
		{name: "all are gone, the containers ended: it was initialized all the same", policy: onFailure, observed: "a=E1 b=E0 c=E0", want: "start[0]"},
		{name: "done in an older sandbox is not done", policy: always, observed: "i2=E0@old i1=E0@old i0=E0@old a=E137@old b=E137@old c=E137@old", want: "init[0]"},
		{name: "done again in the new sandbox", policy: always, observed: "i2=E0 i1=E0 i0=E0 a=E137@old b=E137@old c=E137@old i2=E0@old", want: "start[0 1 2]"},
		{
			name: "being deleted", policy: always, want: "", pod: func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) },
		},
	}
	for i := range rows {
		rows[i].inits = "i0 i1 i2"
	}
	check(t, rows)
}

func TestDecisionsOfComputePodActionsWithRestartableInitContainers(t *testing.T) {
	t.Parallel()
	rows := []decision{
		{name: "initialized: start all", policy: always, observed: "i2=R i1=R i0=R", want: "start[0 1 2]"},
		{name: "none was started", policy: always, want: "init[0]"},
		{name: "stuck in created", policy: always, observed: "i2=C i1=R i0=R", want: "init[2]"},
		{name: "one has started: the next", policy: always, observed: "i0=R", want: "init[1]"},
		{name: "the definition changed", policy: always, observed: "i2=R! i1=R i0=R", want: "stop[i2] init[2] start[0 1 2]"},
		{name: "one ended: again, and the next", policy: always, observed: "i1=R i0=E0", want: "init[0 2]"},
		{name: "one ended beside the containers", policy: always, observed: "i2=R i1=R i0=E0 a=R b=R c=R", want: "init[0]"},
		{name: "dead sandbox, Never, no container ran", policy: never, sandbox: "dead/0", observed: "i2=E137 i1=R i0=R", want: "kill-pod sandbox#1 init[0]"},
		{name: "dead sandbox, Never, the containers ran", policy: never, sandbox: "dead/0", observed: "a=E1 b=E1 c=E1 i2=E137 i1=R i0=R", want: "kill-pod"},
		{name: "dead sandbox, Never, none visible", policy: never, sandbox: "dead/0", want: "kill-pod sandbox#1 init[0]"},
		{name: "dead sandbox, failed, OnFailure", policy: onFailure, sandbox: "dead/0", observed: "i2=E137 i1=R i0=R", want: "kill-pod sandbox#1 init[0]"},
		{name: "dead sandbox, failed, Always", policy: always, sandbox: "dead/0", observed: "i2=E137 i1=R i0=R", want: "kill-pod sandbox#1 init[0]"},
		{name: "failed, Never: started all the same", policy: never, observed: "i2=E137 i1=R i0=R", want: "init[2]"},
		{name: "unknown, Never: started all the same", policy: never, observed: "i2=U i1=R i0=R", want: "stop[i2] init[2]"},
		{name: "ended beside the containers, Never", policy: never, observed: "i2=E137 i1=E1 i0=E0 a=R b=R c=R", want: "init[0 1 2]"},
		{name: "the containers are done: sidecars end", policy: never, observed: "i2=R i1=R i0=R a=E0 b=E0 c=E0", want: "kill-pod"},
		{name: "ended sidecars of done containers stay", policy: never, observed: "i2=E1 i1=R i0=R a=E0 b=E0 c=E0", want: "kill-pod"},
		{name: "the first are gone, the last runs", policy: always, observed: "i2=R", want: "init[0 1] start[0 1 2]"},
	}
	for i := range rows {
		rows[i].inits = "i0* i1* i2*"
	}
	check(t, rows)
}

func check(t *testing.T, rows []decision) {
	t.Helper()
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			pod, status := row.build(t)
			probes := kuberuntime.Probes{}
			for name, v := range row.probes {
				probes[status.Latest(name).ID] = v
			}
			if got := written(kuberuntime.Decide(pod, status, probes)); got != row.want {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}

// ruled gives the container a a policy of its own, and a rule for its exit codes.
func ruled(policy corev1.ContainerRestartPolicy, operator corev1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		c := &pod.Spec.Containers[0]
		c.RestartPolicy = &policy
		if operator != "" {
			c.RestartPolicyRules = []corev1.ContainerRestartRule{{
				Action: corev1.ContainerRestartRuleActionRestart, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: operator, Values: codes},
			}}
		}
	}
}

func TestAContainerIsStartedByAPolicyAndRulesOfItsOwn(t *testing.T) {
	t.Parallel()
	const (
		in    = corev1.ContainerRestartRuleOnExitCodesOpIn
		notIn = corev1.ContainerRestartRuleOnExitCodesOpNotIn

		ownAlways    = corev1.ContainerRestartPolicyAlways
		ownOnFailure = corev1.ContainerRestartPolicyOnFailure
		ownNever     = corev1.ContainerRestartPolicyNever
	)
	check(t, []decision{
		{name: "Always in a pod that never restarts", policy: never, pod: ruled(ownAlways, ""), observed: "a=E0 b=E1 c=R", want: "start[0]"},
		{name: "OnFailure in a pod that never restarts", policy: never, pod: ruled(ownOnFailure, ""), observed: "a=E1 b=E1 c=R", want: "start[0]"},
		{name: "Never in a pod that always restarts", policy: always, pod: ruled(ownNever, ""), observed: "a=E1 b=E1 c=R", want: "start[1]"},
		{name: "a rule for its code", policy: never, pod: ruled(ownNever, in, 3, 42), observed: "a=E42 b=E42 c=R", want: "start[0]"},
		{name: "a rule for other codes", policy: never, pod: ruled(ownNever, in, 3), observed: "a=E42 b=E42 c=R", want: ""},
		{name: "a rule for all codes but its own", policy: never, pod: ruled(ownNever, notIn, 42), observed: "a=E42 b=R c=R", want: ""},
		{name: "a rule for all codes but others", policy: never, pod: ruled(ownNever, notIn, 3), observed: "a=E42 b=R c=R", want: "start[0]"},
		{name: "a rule of an unknown operator", policy: never, pod: ruled(ownNever, "Like", 42), observed: "a=E42 b=R c=R", want: ""},
		{name: "no rule matches: its policy", policy: never, pod: ruled(ownOnFailure, in, 3), observed: "a=E42 b=R c=R", want: "start[0]"},
		{name: "a rule keeps the pod", policy: never, pod: ruled(ownNever, in, 42), observed: "a=E42 b=E0 c=E0", want: "start[0]"},
		{name: "unknown state, by its policy", policy: always, pod: ruled(ownNever, in, 42), observed: "a=U b=R c=R", want: "stop[a]"},
		{name: "dead sandbox", policy: never, pod: ruled(ownNever, in, 42), sandbox: "dead/0", observed: "a=E42 b=E0 c=E0", want: "kill-pod sandbox#1 start[0]"},
		{
			name: "an init container that may fail again", policy: never, inits: "i", observed: "i=E1", want: "init[0]",
			pod: func(pod *corev1.Pod) { pod.Spec.InitContainers[0].RestartPolicy = new(ownOnFailure) },
		},
		{
			name: "an init container that must not", policy: onFailure, inits: "i", observed: "i=E1", want: "kill-pod",
			pod: func(pod *corev1.Pod) { pod.Spec.InitContainers[0].RestartPolicy = new(ownNever) },
		},
	})
}

func (row decision) build(t *testing.T) (*corev1.Pod, *container.PodStatus) {
	t.Helper()
	pod := newPod("p", row.policy, "a", "b", "c")
	for name := range strings.FieldsSeq(row.inits) {
		c := corev1.Container{Name: strings.TrimSuffix(name, "*"), Image: "app:1"}
		if strings.HasSuffix(name, "*") {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	if row.pod != nil {
		row.pod(pod)
	}
	status := &container.PodStatus{UID: pod.UID}
	sandbox := func(id string, attempt uint32, ready bool) {
		status.Sandboxes = append(status.Sandboxes, container.SandboxStatus{Sandbox: container.Sandbox{ID: id, Attempt: attempt, Ready: ready}})
	}
	switch kind, attempt, _ := strings.Cut(row.sandbox, "/"); kind {
	case "", "bridge":
		sandbox("now", 0, true)
	case "dead":
		n, err := strconv.ParseUint(attempt, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		sandbox("now", uint32(n), false)
	case "two":
		sandbox("now", 1, true)
		sandbox("old", 0, true)
	}
	hashes := map[string]uint64{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			hashes[list[i].Name] = kuberuntime.Hash(&list[i])
		}
	}
	for i, o := range strings.Fields(row.observed) {
		name, state, _ := strings.Cut(o, "=")
		state, where, _ := strings.Cut(state, "@")
		c := container.Status{Container: container.Container{
			ID: fmt.Sprintf("%s-%d", name, i), Name: name, SandboxID: "now", Hash: hashes[name], CreatedAt: time.Unix(int64(1000-i), 0),
		}}
		if where != "" {
			c.SandboxID = where
		}
		switch state[0] {
		case 'R':
			c.State = container.Running
			if state == "R!" {
				c.Hash++
			}
		case 'C':
			c.State = container.Created
		case 'E':
			code, err := strconv.ParseInt(state[1:], 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			c.State, c.ExitCode = container.Exited, int32(code)
		}
		status.Containers = append(status.Containers, c)
	}
	return pod, status
}

// written is what is to be done in one line; nothing is "".
func written(a kuberuntime.Actions) string {
	var out []string
	if a.KillPod {
		out = append(out, "kill-pod")
	}
	if a.CreateSandbox {
		out = append(out, fmt.Sprintf("sandbox#%d", a.Attempt))
	}
	var kill []string
	for _, k := range a.Kill {
		kill = append(kill, k.Name)
	}
	if len(kill) > 0 {
		out = append(out, fmt.Sprintf("stop%v", kill))
	}
	if len(a.StartInit) > 0 {
		out = append(out, fmt.Sprintf("init%v", a.StartInit))
	}
	if len(a.Start) > 0 {
		out = append(out, fmt.Sprintf("start%v", a.Start))
	}
	return strings.Join(out, " ")
}
