package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/podgc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// podQuestion is what "describe pod" is asked.
type podQuestion struct {
	cli.DialFlags
	kube    cli.KubeFlags
	cluster string
}

// NewDescribePod is the command "describe pod".
func NewDescribePod() *cobra.Command {
	var q podQuestion
	var namespace, output string
	cmd := &cobra.Command{
		Use:     "pod [NAMESPACE/]NAME",
		Aliases: []string{"pods", "po"},
		Short:   "Tell the states of a pod's containers, when they run again, its eviction or collection and its Events",
		Long: `Tell the states of a pod's containers, how often they were restarted and when one that waits
runs again, the pod's conditions, when it is to be evicted, or collected because its node does
not exist, and what Events say of it.

The pod is the index's; the Events are asked of the API server, and left out with a word of
why when that does not answer.`,
		Example: `  deltaplane describe pod hello-x7k2p-0
  deltaplane describe pod default/hello-x7k2p-0 -o json`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			ctx, cancel := cli.ContextWithTimeout(cmd, q.Timeout)
			defer cancel()
			key := a[0]
			if !strings.Contains(key, "/") {
				key = namespace + "/" + key
			}
			p, err := q.ask(ctx, key)
			if err != nil {
				return err
			}
			if output == "json" {
				return show.PrintJSON(cmd.OutOrStdout(), p)
			}
			return p.print(cmd.OutOrStdout())
		},
	}
	q.Register(cmd.Flags())
	q.kube.Register(cmd.Flags())
	show.RegisterOutput(cmd, &output)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "`namespace` of a pod whose name has none")
	cmd.Flags().StringVar(&q.cluster, "cluster", "dev", "`name` of the cluster, the first part of its collections' names")
	return cmd
}

// PodAnswer is all that is known of a pod, as programs read it.
type PodAnswer struct {
	Name     string          `json:"name"`
	UID      string          `json:"uid"`
	Node     string          `json:"node,omitempty"`
	Phase    corev1.PodPhase `json:"phase"`
	Reason   string          `json:"reason,omitempty"`
	Message  string          `json:"message,omitempty"`
	IPs      []string        `json:"ips"`
	Created  time.Time       `json:"created"`
	Started  time.Time       `json:"started,omitzero"`
	Owners   []string        `json:"owners"`
	Deleted  time.Time       `json:"deletion_timestamp,omitzero"`
	Eviction time.Time       `json:"eviction_planned,omitzero"`
	// Collection is when podgc collects the pod, whose node does not exist.
	Collection time.Time             `json:"collection_planned,omitzero"`
	Containers []containerAnswer     `json:"containers"`
	Conditions []corev1.PodCondition `json:"conditions"`
	Events     []EventAnswer         `json:"events"`
	// NoEvents is why there are none to show.
	NoEvents string `json:"events_unknown,omitempty"`
}

type containerAnswer struct {
	Name     string `json:"name"`
	Init     bool   `json:"init,omitempty"`
	Image    string `json:"image"`
	Ready    bool   `json:"ready"`
	Restarts int32  `json:"restarts"`
	// State is "waiting", "running" or "terminated"; Reason, Message and ExitCode go with it.
	State    string    `json:"state"`
	Reason   string    `json:"reason,omitempty"`
	Message  string    `json:"message,omitempty"`
	ExitCode *int32    `json:"exit_code,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	// RunsAgain is when a container in back-off is started again.
	RunsAgain time.Time   `json:"runs_again,omitzero"`
	Last      *lastAnswer `json:"last,omitempty"`
}

// lastAnswer is how the instance before ended.
type lastAnswer struct {
	Reason   string    `json:"reason"`
	ExitCode int32     `json:"exit_code"`
	Finished time.Time `json:"finished,omitzero"`
}

func (q *podQuestion) ask(ctx context.Context, key string) (*PodAnswer, error) {
	indexConn, err := cli.Dial(q.Index, q.Config)
	if err != nil {
		return nil, err
	}
	defer indexConn.Close()
	queueConn, err := cli.Dial(q.Queue, q.Config)
	if err != nil {
		return nil, err
	}
	defer queueConn.Close()
	pods := delta.Collection{Cluster: q.cluster, Version: "v1", Resource: "pods"}.String()
	obj, _, err := client.NewIndex(indexConn).Get(ctx, pods, key, client.ReadOptions{})
	if err != nil {
		return nil, cli.Plain(err)
	}
	p, err := decodePod(obj.Payload)
	if err != nil {
		return nil, err
	}
	a := describePod(p)
	queues := queuev1.NewQueueAdminServiceClient(queueConn)
	item, err := inspect(ctx, queues, q.cluster+"/tainteviction", key)
	if err != nil {
		return nil, err
	}
	if at := item.GetDelayedUntil(); at != nil {
		a.Eviction = at.AsTime()
	}
	if a.Node != "" {
		if item, err = inspect(ctx, queues, q.cluster+"/podgc", a.Node); err != nil {
			return nil, err
		}
		if at := item.GetDelayedUntil(); at != nil && item.GetLastReason() == podgc.Gone {
			a.Collection = at.AsTime()
		}
	}
	if a.Events, err = Events(ctx, &q.kube, p.Namespace, p.Name, "Pod", string(p.UID)); err != nil {
		a.NoEvents = err.Error()
	}
	return a, nil
}

func decodePod(payload []byte) (*corev1.Pod, error) {
	p := new(corev1.Pod)
	if err := json.Unmarshal(payload, p); err != nil {
		return nil, fmt.Errorf("pod: %w", err)
	}
	return p, nil
}

// describePod is what the pod says of itself.
func describePod(p *corev1.Pod) *PodAnswer {
	a := &PodAnswer{
		Name: p.Namespace + "/" + p.Name, UID: string(p.UID), Node: p.Spec.NodeName, Phase: p.Status.Phase, Reason: p.Status.Reason, Message: p.Status.Message,
		Created: p.CreationTimestamp.Time, IPs: []string{}, Owners: []string{}, Containers: []containerAnswer{}, Conditions: show.OrEmpty(p.Status.Conditions), Events: []EventAnswer{},
	}
	if p.Status.StartTime != nil {
		a.Started = p.Status.StartTime.Time
	}
	if p.DeletionTimestamp != nil {
		a.Deleted = p.DeletionTimestamp.Time
	}
	for _, ip := range p.Status.PodIPs {
		a.IPs = append(a.IPs, ip.IP)
	}
	for _, o := range p.OwnerReferences {
		a.Owners = append(a.Owners, o.Kind+"/"+o.Name)
	}
	for _, group := range []struct {
		init bool
		spec []corev1.Container
		all  []corev1.ContainerStatus
	}{{true, p.Spec.InitContainers, p.Status.InitContainerStatuses}, {false, p.Spec.Containers, p.Status.ContainerStatuses}} {
		for _, c := range group.spec {
			s := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "not reported"}}}
			if i := slices.IndexFunc(group.all, func(s corev1.ContainerStatus) bool { return s.Name == c.Name }); i >= 0 {
				s = group.all[i]
			}
			a.Containers = append(a.Containers, describeContainer(c, s, group.init))
		}
	}
	return a
}

func describeContainer(c corev1.Container, s corev1.ContainerStatus, init bool) containerAnswer {
	out := containerAnswer{Name: c.Name, Init: init, Image: c.Image, Ready: s.Ready, Restarts: s.RestartCount}
	if t := s.LastTerminationState.Terminated; t != nil {
		out.Last = &lastAnswer{Reason: t.Reason, ExitCode: t.ExitCode, Finished: t.FinishedAt.Time}
	}
	switch {
	case s.State.Running != nil:
		out.State, out.Since = "running", s.State.Running.StartedAt.Time
	case s.State.Terminated != nil:
		t := s.State.Terminated
		out.State, out.Since, out.Reason, out.Message, out.ExitCode = "terminated", t.FinishedAt.Time, t.Reason, t.Message, new(t.ExitCode)
	default:
		out.State = "waiting"
		if w := s.State.Waiting; w != nil {
			out.Reason, out.Message = w.Reason, w.Message
			if out.Last != nil {
				out.RunsAgain = runsAgain(w, out.Last.Finished)
			}
		}
	}
	return out
}

// backOffText is how kubelets and our agent tell a back-off.
var backOffText = regexp.MustCompile(`^back-off (\S+) restarting failed container`)

// runsAgain is the end of a back-off that began when the last instance ended; zero when the state
// tells of none.
func runsAgain(w *corev1.ContainerStateWaiting, ended time.Time) time.Time {
	found := backOffText.FindStringSubmatch(w.Message)
	if w.Reason != "CrashLoopBackOff" || found == nil || ended.IsZero() {
		return time.Time{}
	}
	wait, err := time.ParseDuration(found[1])
	if err != nil {
		return time.Time{}
	}
	return ended.Add(wait)
}
