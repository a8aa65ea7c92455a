package node_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/nodeagent/node"
)

func types(s string) apitypes.UID { return apitypes.UID("uid-" + s) }

// said tells a node's conditions: "Ready=True MemoryPressure=False".
func said(n *corev1.Node) string {
	var out []string
	for _, c := range n.Status.Conditions {
		out = append(out, string(c.Type)+"="+string(c.Status))
	}
	return strings.Join(out, " ")
}

const healthy = "MemoryPressure=False DiskPressure=False PIDPressure=False Ready=True"

func TestANodeIsRegisteredAndKeptAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		a := start(t, s, node.Config{
			Instance: "me", Labels: map[string]string{"zone": "z1"}, Taints: []corev1.Taint{{Key: "k", Effect: "NoSchedule"}},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.1.2.3"}},
			Info: func() corev1.NodeSystemInfo {
				return corev1.NodeSystemInfo{ContainerRuntimeVersion: "containerd://2.1"}
			},
		}, node.Sources{}, nil)
		if !a.is() {
			t.Fatal("not registered")
		}
		n := s.node()
		if said(n) != healthy || n.Labels["zone"] != "z1" || n.Labels[corev1.LabelHostname] != "n1" || len(n.Spec.Taints) != 1 || n.Status.NodeInfo.ContainerRuntimeVersion != "containerd://2.1" || n.Status.NodeInfo.OperatingSystem == "" {
			t.Errorf("node is %+v", n)
		}
		if got := a.HostIPs(); !slices.Equal(got, []string{"10.1.2.3"}) || a.Node().UID != n.UID {
			t.Errorf("HostIPs() = %v, Node() = %v", got, a.Node())
		}
		s.took("update leases")
		s.took("patch nodes")
		pass(100 * time.Second)
		if n := s.took("update leases"); n != 10 {
			t.Errorf("the lease was renewed %d times in 100 s, want every 10 s", n)
		}
		if n := s.took("patch nodes"); n != 0 {
			t.Errorf("the status was written %d times though nothing changed", n)
		}
		l := s.currentLease()
		if *l.Spec.LeaseDurationSeconds != 40 || l.Annotations[node.InstanceAnnotation] != "me" || len(l.OwnerReferences) != 1 || l.OwnerReferences[0].UID != n.UID || time.Since(l.Spec.RenewTime.Time) > 10*time.Second {
			t.Errorf("lease is %+v", l)
		}
		pass(5 * time.Minute)
		if n := s.took("patch nodes"); n != 1 {
			t.Errorf("the status was written %d times in five minutes, want once", n)
		}
	})
}

func TestANodeThatIsThereIsAdopted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		old := metav1.NewTime(time.Now().Add(-time.Hour)).Rfc3339Copy()
		s.nodes["n1"] = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "old", ResourceVersion: "0", Labels: map[string]string{"theirs": "x"}},
			Spec:       corev1.NodeSpec{Unschedulable: true, PodCIDR: "10.0.0.0/24"},
			Status: corev1.NodeStatus{
				Capacity: corev1.ResourceList{"example.com/gpu": resource.MustParse("2")},
				Conditions: []corev1.NodeCondition{
					{Type: "NetworkUnavailable", Status: "False", LastTransitionTime: old}, {Type: "Ready", Status: "Unknown", LastTransitionTime: old}, {Type: "DiskPressure", Status: "False", LastTransitionTime: old},
				},
			},
		}
		a := start(t, s, node.Config{Taints: []corev1.Taint{{Key: "k"}}}, node.Sources{}, nil)
		n := s.node()
		if !a.is() || n.UID != "old" || !n.Spec.Unschedulable || len(n.Spec.Taints) != 0 || n.Labels["theirs"] != "x" || n.Labels[corev1.LabelHostname] != "n1" || len(n.Status.Capacity) != 1 {
			t.Errorf("node is %+v", n)
		}
		if got := said(n); got != "NetworkUnavailable=False Ready=True DiskPressure=False MemoryPressure=False PIDPressure=False" {
			t.Errorf("conditions are %s", got)
		}
		if c := n.Status.Conditions; c[1].LastTransitionTime.Equal(&old) || !c[2].LastTransitionTime.Equal(&old) || !c[0].LastTransitionTime.Equal(&old) {
			t.Errorf("transitions: %v", c)
		}
	})
}

func TestConditionsFollowTheReadings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		var memory atomic.Pointer[node.Pressure]
		var down atomic.Bool
		memory.Store(&node.Pressure{})
		var told []string
		a := start(t, s, node.Config{PressureHold: time.Minute, Event: func(reason, _ string) { told = append(told, reason) }}, node.Sources{
			Memory: func() (node.Pressure, error) { return *memory.Load(), nil },
			Disk: func() (node.Pressure, error) {
				if down.Load() {
					return node.Pressure{}, errors.New("statfs: no such device")
				}
				return node.Pressure{}, nil
			},
		}, func(context.Context) []error {
			if down.Load() {
				return []error{errors.New("PLEG is not healthy"), errors.New("runtime is down")}
			}
			return nil
		})
		memory.Store(&node.Pressure{On: true, Message: "12 MiB left"})
		pass(10 * time.Second)
		if got := said(s.node()); got != strings.Replace(healthy, "MemoryPressure=False", "MemoryPressure=True", 1) {
			t.Errorf("conditions are %s", got)
		}
		memory.Store(&node.Pressure{})
		pass(50 * time.Second)
		if got := said(s.node()); !strings.Contains(got, "MemoryPressure=True") {
			t.Errorf("conditions are %s, want the pressure to be held for a minute", got)
		}
		pass(20 * time.Second)
		down.Store(true)
		a.Check() // at once, not at the next tick
		synctest.Wait()
		n := s.node()
		if got := said(n); got != "MemoryPressure=False DiskPressure=Unknown PIDPressure=False Ready=False" {
			t.Errorf("conditions are %s", got)
		}
		a.stop()
		_ = a.ended()
		if want := []string{"NodeHasInsufficientMemory", "NodeHasSufficientMemory", "NodeNotReady"}; !slices.Equal(told, want) {
			t.Errorf("Events told %v, want %v", told, want)
		}
		if c := n.Status.Conditions[3]; c.Reason != "KubeletNotReady" || c.Message != "[PLEG is not healthy, runtime is down]" {
			t.Errorf("Ready says %q, %q", c.Reason, c.Message)
		}
	})
}

// A reading that fails says nothing, whatever stands in it, and a pressure that is only held does
// not speak of what is read now.
func TestAReadingThatFailsIsNoPressure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		var fails, on atomic.Bool
		fails.Store(true)
		start(t, s, node.Config{PressureHold: time.Minute}, node.Sources{Memory: func() (node.Pressure, error) {
			if fails.Load() {
				return node.Pressure{On: true, Message: "0 MiB left"}, errors.New("no such file")
			}
			return node.Pressure{On: on.Load(), Message: "5000 MiB left"}, nil
		}}, nil)
		if got := said(s.node()); got != strings.Replace(healthy, "MemoryPressure=False", "MemoryPressure=Unknown", 1) {
			t.Errorf("conditions are %s", got)
		}
		fails.Store(false)
		pass(10 * time.Second)
		if got := said(s.node()); got != healthy {
			t.Errorf("conditions are %s once it can be read", got)
		}
		on.Store(true)
		pass(10 * time.Second)
		on.Store(false)
		pass(10 * time.Second)
		if c := s.node().Status.Conditions[0]; c.Status != corev1.ConditionTrue || strings.Contains(c.Message, "5000") {
			t.Errorf("a pressure that is held is %s: %s", c.Status, c.Message)
		}
	})
}

func TestADeletedNodeIsMadeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		a := start(t, s, node.Config{}, node.Sources{}, nil)
		s.mu.Lock()
		delete(s.nodes, "n1")
		s.lease = nil // collected with its owner
		s.mu.Unlock()
		pass(20 * time.Second)
		if n := s.node(); n == nil || said(n) != healthy || a.Node().UID != n.UID {
			t.Fatalf("node is %v", n)
		}
		pass(10 * time.Second)
		if l := s.currentLease(); l == nil || l.OwnerReferences[0].UID != s.node().UID {
			t.Errorf("lease is %+v", l)
		}
	})
}

func TestReadyIsRestoredAfterSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		start(t, s, node.Config{}, node.Sources{}, nil)
		s.set(true)
		pass(5 * time.Minute)
		s.set(false)
		s.change(func(n *corev1.Node) { // what the node controller writes of a silent node
			for i := range n.Status.Conditions {
				n.Status.Conditions[i].Status = corev1.ConditionUnknown
			}
		})
		pass(10 * time.Second)
		if got := said(s.node()); got != healthy {
			t.Errorf("conditions are %s", got)
		}
	})
}

func TestAnAPIServerThatIsAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.set(true)
		a := start(t, s, node.Config{}, node.Sources{}, nil)
		pass(time.Hour)
		if a.is() {
			t.Error("registered without an API server")
		}
		s.set(false)
		pass(10 * time.Second)
		if !a.is() {
			t.Error("not registered 10 s after the API server came")
		}
	})
}

func TestASecondAgentIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		first := start(t, s, node.Config{Instance: "first"}, node.Sources{}, nil)
		second := start(t, s, node.Config{Instance: "second", Labels: map[string]string{"second": "x"}}, node.Sources{}, nil)
		if second.is() {
			t.Fatal("registered at once")
		}
		pass(15 * time.Second)
		if err := second.ended(); !errors.Is(err, node.ErrNodeTaken) || !strings.Contains(err.Error(), "first") {
			t.Errorf("Run() = %v, want ErrNodeTaken that names the first", err)
		}
		pass(time.Minute)
		if l := s.currentLease(); l.Annotations[node.InstanceAnnotation] != "first" || s.node().Labels["second"] != "" {
			t.Error("the second agent left traces")
		}
		if first.stop(); first.ended() != nil {
			t.Errorf("Run() of the first = %v", first.ended())
		}
		third := start(t, s, node.Config{Instance: "third"}, node.Sources{}, nil)
		if !third.is() {
			t.Error("a lease that was given up is not taken at once")
		}
	})
}

func TestTwoAgentsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.hold("dead", time.Now())
		var agents []*agent
		for _, name := range []string{"a", "b", "c"} {
			agents = append(agents, start(t, s, node.Config{Instance: name}, node.Sources{}, nil))
		}
		pass(2 * time.Minute)
		is := 0
		for _, a := range agents {
			if a.is() {
				is++
			} else if err := a.ended(); !errors.Is(err, node.ErrNodeTaken) {
				t.Errorf("Run() = %v", err)
			}
		}
		if is != 1 {
			t.Errorf("%d agents are the node", is)
		}
	})
}

// Neither can be blamed for what an API server that is away did not take or tell.
func TestNobodysSilenceCountsWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	for offset := range 10 {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			a := start(t, s, node.Config{Instance: "a"}, node.Sources{}, nil)
			pass(time.Duration(offset)*time.Second + 500*time.Millisecond)
			b := start(t, s, node.Config{Instance: "b"}, node.Sources{}, nil)
			s.set(true)
			pass(61 * time.Second)
			s.set(false)
			pass(time.Minute)
			if !a.is() || len(a.done) > 0 {
				t.Errorf("offset %d s: the agent that lived lost its node", offset)
			}
			if len(b.done) == 0 {
				t.Fatalf("offset %d s: the second agent goes on", offset)
			}
			if err := b.ended(); !errors.Is(err, node.ErrNodeTaken) {
				t.Errorf("offset %d s: Run() = %v, want ErrNodeTaken", offset, err)
			}
		})
	}
}

// A copy of a machine has the instance's file, too.
func TestACopyOfAnAgentDoesNotRunBesideIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		agents := []*agent{start(t, s, node.Config{Instance: "same"}, node.Sources{}, nil)}
		pass(25 * time.Second)
		agents = append(agents, start(t, s, node.Config{Instance: "same"}, node.Sources{}, nil))
		pass(time.Minute)
		ended := 0
		for _, a := range agents {
			select {
			case err := <-a.done:
				if !errors.Is(err, node.ErrNodeTaken) || !strings.Contains(err.Error(), "same") {
					t.Errorf("Run() = %v, want ErrNodeTaken naming the instance", err)
				}
				ended++
				a.done <- err
			default:
			}
		}
		if ended != 1 {
			t.Errorf("%d of two agents ended, want one", ended)
		}
	})
}

func TestADeadAgentsNodeIsTakenOver(t *testing.T) {
	t.Parallel()
	for name, clock := range map[string]time.Duration{"same clock": 0, "its clock ran ahead": 24 * time.Hour, "its clock was behind": -24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				s.hold("dead", time.Now().Add(clock))
				a := start(t, s, node.Config{Instance: "me"}, node.Sources{}, nil)
				pass(39 * time.Second)
				if a.is() {
					t.Error("taken over before the lease had lasted, by our clock")
				}
				pass(2 * time.Second)
				if !a.is() {
					t.Error("not taken over")
				}
			})
		})
	}
}

func TestALiveAgentIsNotTakenOverWhateverItsClockSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.hold("alive", time.Now().Add(-24*time.Hour))
		a := start(t, s, node.Config{Instance: "me"}, node.Sources{}, nil)
		pass(30 * time.Second)
		s.hold("alive", time.Now().Add(-24*time.Hour))
		pass(10 * time.Second)
		if err := a.ended(); !errors.Is(err, node.ErrNodeTaken) {
			t.Errorf("Run() = %v", err)
		}
	})
}

func TestALeaseOfSomeOtherProgramIsRespected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.hold("none", time.Now())
		a := start(t, s, node.Config{Instance: "me"}, node.Sources{}, nil)
		pass(10 * time.Second)
		s.hold("none", time.Now())
		pass(10 * time.Second)
		if err := a.ended(); !errors.Is(err, node.ErrNodeTaken) {
			t.Errorf("Run() = %v beside a kubelet", err)
		}
	})
}

func TestAnAgentStartedAgainNeedNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.hold("me", time.Now())
		if a := start(t, s, node.Config{Instance: "me"}, node.Sources{}, nil); !a.is() {
			t.Error("not registered at once")
		}
	})
}

func TestAnAgentThatLostItsNodeStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		a := start(t, s, node.Config{Instance: "me"}, node.Sources{}, nil)
		s.hold("other", time.Now())
		pass(10 * time.Second)
		if err := a.ended(); !errors.Is(err, node.ErrNodeTaken) || !strings.Contains(err.Error(), "other") {
			t.Errorf("Run() = %v", err)
		}
		if l := s.currentLease(); l.Annotations[node.InstanceAnnotation] != "other" {
			t.Error("the lease of the other was touched")
		}
	})
}

func TestSomebodyElsesTouchOfTheLeaseIsNoLoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		a := start(t, s, node.Config{Instance: "me"}, node.Sources{}, nil)
		s.mu.Lock()
		s.lease = s.lease.DeepCopy()
		s.lease.Labels = map[string]string{"theirs": "x"}
		s.lease.ResourceVersion = s.next()
		s.mu.Unlock()
		pass(time.Minute)
		if l := s.currentLease(); !a.is() || l.Labels["theirs"] != "x" || time.Since(l.Spec.RenewTime.Time) > 10*time.Second {
			t.Errorf("lease is %+v", l)
		}
	})
}

func TestInstanceIsKept(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made")
	first, err := node.Instance(dir)
	if err != nil || first == "" {
		t.Fatalf("Instance() = %q, %v", first, err)
	}
	if again, err := node.Instance(dir); err != nil || again != first {
		t.Errorf("Instance() = %q, %v; want %q", again, err, first)
	}
	if err := os.WriteFile(filepath.Join(dir, "instance"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if other, err := node.Instance(dir); err != nil || other == "" || other == first {
		t.Errorf("Instance() = %q, %v of an empty file", other, err)
	}
}

func TestSystemReadings(t *testing.T) {
	t.Parallel()
	s := node.System(filepath.Join(t.TempDir(), "not", "made", "yet"))
	for name, read := range map[string]func() (node.Pressure, error){"memory": s.Memory, "disk": s.Disk, "pid": s.PID} {
		if p, err := read(); err != nil || p.Message == "" {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	c := node.Capacity(t.TempDir())
	for _, name := range []corev1.ResourceName{"cpu", "memory", "ephemeral-storage", "pods"} {
		if q := c[name]; q.Sign() <= 0 {
			t.Errorf("capacity of %s is %s", name, q.String())
		}
	}
}

func TestFaultsOfTheConfigurationAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := node.New(node.Config{Name: "No Name", HeartbeatEvery: -1, Labels: map[string]string{"a b": "c"}}, newServer(), node.Sources{}, nil, slog.New(slog.DiscardHandler))
	for _, want := range []string{"No Name", "heartbeat", "a b"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want it to name %s", err, want)
		}
	}
}
