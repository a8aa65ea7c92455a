package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// Sources are the readings behind the conditions. Each says whether there is pressure and
// why; an error leaves the condition Unknown. A nil one is never under pressure. See [System].
type Sources struct {
	Memory, Disk, PID func() (Pressure, error)
}

// Pressure is one reading; Message says why it is on.
type Pressure struct {
	On      bool
	Message string
}

// object is the node as it is created.
func (r *Registrar) object() *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{Kind: kube.Nodes.Kind, APIVersion: kube.Nodes.APIVersion()},
		ObjectMeta: metav1.ObjectMeta{Name: r.cfg.Name, Labels: r.cfg.Labels, Annotations: r.cfg.Annotations},
		Spec:       corev1.NodeSpec{ProviderID: r.cfg.ProviderID, Taints: r.cfg.Taints},
	}
}

// labelPatch gives a node the labels and annotations it misses; nil when it misses none.
func (r *Registrar) labelPatch(node *corev1.Node) []byte {
	differ := func(want, have map[string]string) map[string]string {
		out := map[string]string{}
		for k, v := range want {
			if had, ok := have[k]; !ok || had != v {
				out[k] = v
			}
		}
		return out
	}
	labels, annotations := differ(r.cfg.Labels, node.Labels), differ(r.cfg.Annotations, node.Annotations)
	if len(labels)+len(annotations) == 0 {
		return nil
	}
	body, err := encode(map[string]any{"metadata": map[string]any{
		"uid": node.UID, "resourceVersion": node.ResourceVersion, "labels": labels, "annotations": annotations,
	}})
	if err != nil {
		return nil // maps of strings can be encoded
	}
	return body
}

// status is what node's should be at now; what others put there stays.
func (r *Registrar) status(ctx context.Context, node *corev1.Node, now time.Time) corev1.NodeStatus {
	s := *node.Status.DeepCopy()
	s.Capacity, s.Allocatable = over(s.Capacity, r.cfg.Capacity), over(s.Allocatable, r.cfg.Allocatable)
	s.Addresses = r.cfg.Addresses
	s.DaemonEndpoints.KubeletEndpoint.Port = r.cfg.KubeletPort
	s.NodeInfo = fillInfo(r.cfg.Info(), s.NodeInfo)
	r.pressure(&s, corev1.NodeMemoryPressure, r.sources.Memory, now, pressureText{
		"KubeletHasInsufficientMemory", "KubeletHasSufficientMemory", "the node has insufficient memory available", "the node has sufficient memory available",
	})
	r.pressure(&s, corev1.NodeDiskPressure, r.sources.Disk, now, pressureText{
		"KubeletHasDiskPressure", "KubeletHasNoDiskPressure", "the node has disk pressure", "the node has no disk pressure",
	})
	r.pressure(&s, corev1.NodePIDPressure, r.sources.PID, now, pressureText{
		"KubeletHasInsufficientPID", "KubeletHasSufficientPID", "the node has insufficient process IDs available", "the node has sufficient process IDs available",
	})
	ready := corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "the node agent is posting ready status",
	}
	if errs := r.health(ctx); errors.Join(errs...) != nil {
		ready.Status, ready.Reason = corev1.ConditionFalse, "KubeletNotReady"
		ready.Message = "[" + strings.ReplaceAll(errors.Join(errs...).Error(), "\n", ", ") + "]"
	}
	set(&s, ready, now)
	return s
}

// over is have with what want says.
func over(have, want corev1.ResourceList) corev1.ResourceList {
	out := maps.Clone(have)
	if out == nil {
		out = corev1.ResourceList{}
	}
	maps.Copy(out, want)
	return out
}

type pressureText struct{ onReason, offReason, on, off string }

// pressure sets one of the pressure conditions. It stays on for a while after the pressure
// is gone, so that the node's taint does not come and go with every reading.
func (r *Registrar) pressure(s *corev1.NodeStatus, t corev1.NodeConditionType, read func() (Pressure, error), now time.Time, text pressureText) {
	var p Pressure
	var err error
	if read != nil {
		p, err = read()
	}
	if err != nil || !p.On {
		p = Pressure{} // what stands in it says nothing of now
	} else {
		r.lastOn[string(t)] = now
	}
	last, was := r.lastOn[string(t)]
	held := was && now.Sub(last) < r.cfg.PressureHold
	c := corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse, Reason: text.offReason, Message: text.off}
	switch {
	case err != nil:
		c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "ReadingFailed", err.Error()
	case p.On, held:
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, text.onReason, cmp.Or(p.Message, text.on)
	}
	set(s, c, now)
}

// set puts a condition in; its transition is kept while its status does not change.
func set(s *corev1.NodeStatus, c corev1.NodeCondition, now time.Time) {
	c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(now).Rfc3339Copy(), metav1.NewTime(now).Rfc3339Copy()
	i := slices.IndexFunc(s.Conditions, func(was corev1.NodeCondition) bool { return was.Type == c.Type })
	if i < 0 {
		s.Conditions = append(s.Conditions, c)
		return
	}
	if s.Conditions[i].Status == c.Status {
		c.LastTransitionTime = s.Conditions[i].LastTransitionTime
	}
	s.Conditions[i] = c
}

// reasons are the Events of the conditions: when one is True, and when it is not.
var reasons = map[corev1.NodeConditionType][2]string{
	corev1.NodeReady:          {"NodeReady", "NodeNotReady"},
	corev1.NodeMemoryPressure: {"NodeHasInsufficientMemory", "NodeHasSufficientMemory"},
	corev1.NodeDiskPressure:   {"NodeHasDiskPressure", "NodeHasNoDiskPressure"},
	corev1.NodePIDPressure:    {"NodeHasInsufficientPID", "NodeHasSufficientPID"},
}

// tell tells of the conditions that came or went between two statuses.
func (r *Registrar) tell(was, is *corev1.NodeStatus) {
	on := func(s *corev1.NodeStatus, t corev1.NodeConditionType) (yes, known bool) {
		for _, c := range s.Conditions {
			if c.Type == t {
				return c.Status == corev1.ConditionTrue, true
			}
		}
		return false, false
	}
	for _, c := range is.Conditions {
		names, ours := reasons[c.Type]
		before, known := on(was, c.Type)
		now := c.Status == corev1.ConditionTrue
		if !ours || known && before == now {
			continue
		}
		reason := names[1]
		if now {
			reason = names[0]
		}
		r.cfg.Event(reason, "Node "+r.cfg.Name+" status is now: "+reason)
	}
}

// statusPatch is the merge patch that leads from node's status to want; nil when nothing
// but the heartbeats differ and none is due.
func statusPatch(node *corev1.Node, want corev1.NodeStatus, due bool) ([]byte, error) {
	have := &node.Status
	still := slices.Clone(want.Conditions)
	for i := range still {
		for _, was := range have.Conditions {
			if was.Type == still[i].Type {
				still[i].LastHeartbeatTime = was.LastHeartbeatTime
			}
		}
	}
	change := map[string]any{}
	add := func(name string, have, want any) {
		if !equality.Semantic.DeepEqual(have, want) {
			change[name] = want
		}
	}
	add("capacity", have.Capacity, want.Capacity)
	add("allocatable", have.Allocatable, want.Allocatable)
	add("addresses", have.Addresses, want.Addresses)
	add("daemonEndpoints", have.DaemonEndpoints, want.DaemonEndpoints)
	add("nodeInfo", have.NodeInfo, want.NodeInfo)
	add("conditions", have.Conditions, still)
	if len(change) == 0 && !due {
		return nil, nil
	}
	change["conditions"] = want.Conditions
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"status":   change,
	})
}

// kubeletVersion is that of the kubelet whose behaviour is followed; tools compare it with the
// API server's.
const kubeletVersion = "v1.36.3+deltaplane"

// fillInfo completes what is known of the system: by what the node said before, then by
// looking.
func fillInfo(known, before corev1.NodeSystemInfo) corev1.NodeSystemInfo {
	info := before
	found := systemInfo()
	for _, f := range []struct {
		to                   *string
		known, found, before string
	}{
		{&info.MachineID, known.MachineID, found.MachineID, before.MachineID},
		{&info.SystemUUID, known.SystemUUID, found.SystemUUID, before.SystemUUID},
		{&info.BootID, known.BootID, found.BootID, before.BootID},
		{&info.KernelVersion, known.KernelVersion, found.KernelVersion, before.KernelVersion},
		{&info.OSImage, known.OSImage, found.OSImage, before.OSImage},
		{&info.ContainerRuntimeVersion, known.ContainerRuntimeVersion, "", before.ContainerRuntimeVersion},
		{&info.KubeletVersion, known.KubeletVersion, kubeletVersion, ""},
		{&info.OperatingSystem, known.OperatingSystem, runtime.GOOS, ""},
		{&info.Architecture, known.Architecture, runtime.GOARCH, ""},
	} {
		*f.to = cmp.Or(f.known, f.found, f.before)
	}
	return info
}
