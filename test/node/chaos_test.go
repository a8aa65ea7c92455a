//go:build linux

package node_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/test/node/containerd"
)

// chaosEnv and seedEnv are how long the faults go on, and the seed of their order.
const (
	chaosEnv = "DELTAPLANE_CHAOS"
	seedEnv  = "DELTAPLANE_CHAOS_SEED"
)

// chaos is a random history on one node.
type chaos struct {
	*world
	rng     *rand.Rand
	proxy   *proxy
	always  []string
	never   []string
	deleted map[string]bool
	made    int
}

// TestNothingRunsTwiceWhateverIsKilled kills the agent, containerd and containers in any order
// while pods come and go, and every fifth answer of the runtime is lost. Each container holds a
// lock while it runs, and writes down who could not get it.
func TestNothingRunsTwiceWhateverIsKilled(t *testing.T) {
	t.Parallel()
	length, err := time.ParseDuration(env(chaosEnv, "30s"))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := strconv.ParseUint(env(seedEnv, strconv.FormatInt(time.Now().UnixNano(), 10)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s=%d repeats the order of faults", seedEnv, seed)
	c := &chaos{world: newWorld(t, containerd.Built, cluster{}), rng: rand.New(rand.NewPCG(seed, 0)), deleted: map[string]bool{}}
	var endpoint string
	c.proxy, endpoint = startProxy(t, c.runtime.Endpoint(), rand.New(rand.NewPCG(seed, 1)))
	c.killAgent(t)
	c.agentArgs = append(c.agentArgs, "--cri", endpoint)
	c.startAgent(t)
	c.proxy.lose(0.2)
	for range 3 {
		c.add(t, corev1.RestartPolicyAlways)
	}
	for end := time.Now().Add(length); time.Now().Before(end); {
		c.act(t)
		c.pause(1500)
	}
	c.check(t)
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// pause waits a random time, in milliseconds at most.
func (c *chaos) pause(most int) {
	<-time.After(time.Duration(c.rng.IntN(most)) * time.Millisecond)
}

func (c *chaos) add(t *testing.T, policy corev1.RestartPolicy) {
	t.Helper()
	c.made++
	name := fmt.Sprintf("%s-%d", strings.ToLower(string(policy)), c.made)
	args := []string{"alone", "/mark", "sleep", "1h"}
	if policy == corev1.RestartPolicyNever {
		args = []string{"alone", "/mark", "exit", "0", fmt.Sprintf("%dms", c.rng.IntN(3000))}
		c.never = append(c.never, name)
	} else {
		c.always = append(c.always, name)
	}
	pod := c.boxPod(t, name, policy, args...)
	pod.Spec.TerminationGracePeriodSeconds = new(int64(1))
	c.runPod(t, pod)
}

// act does one thing of what happens to a node.
func (c *chaos) act(t *testing.T) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	switch n := c.rng.IntN(10); n {
	case 0, 1:
		t.Log("kill the agent")
		c.killAgent(t)
		c.pause(3000)
		c.startAgent(t)
	case 2, 3:
		t.Log("kill containerd")
		must(c.runtime.Kill())
		c.pause(2000)
		must(c.runtime.Restart(t.Context()))
	case 4:
		t.Log("kill both")
		c.killAgent(t)
		must(c.runtime.Kill())
		must(c.runtime.Restart(t.Context()))
		c.startAgent(t)
	case 5:
		t.Log("containerd hangs")
		must(c.runtime.Hang())
		c.pause(4000)
		must(c.runtime.Resume())
	case 6:
		c.killTask(t)
	case 7:
		name := c.always[c.rng.IntN(len(c.always))]
		t.Logf("delete pod %s", name)
		if err := c.remove(t.Context(), podsPath+"/"+name, -1); err != nil && !errors.Is(err, errNotFound) {
			t.Fatal(err)
		}
		c.deleted[name] = true
		c.add(t, corev1.RestartPolicyAlways)
	default:
		c.add(t, corev1.RestartPolicyNever)
		t.Logf("create pod %s", c.never[len(c.never)-1])
	}
}

// killTask kills the process of a container, if one runs.
func (c *chaos) killTask(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	list, err := runtimeapi.NewRuntimeServiceClient(c.runtime.Conn()).ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil || len(list.Containers) == 0 {
		return
	}
	one := list.Containers[c.rng.IntN(len(list.Containers))]
	if pid, err := c.runtime.TaskPID(one.Id); err == nil {
		t.Logf("kill a container of pod %s", one.Labels["io.kubernetes.pod.name"])
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// check waits until the node has done all that it should, and reads what the containers wrote.
func (c *chaos) check(t *testing.T) {
	t.Helper()
	c.proxy.lose(0)
	t.Logf("answers that were lost: %v", c.proxy.lost)
	c.awaitNode(t, corev1.ConditionTrue)
	for _, name := range c.never {
		got := c.await(t, name, "has ended", 90*time.Second, func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		})
		if n := len(c.starts(t, name)); n > 1 || (n == 0 && got.Status.Phase == corev1.PodSucceeded) {
			t.Errorf("pod %s is never to be restarted: it is %s after %d starts", name, got.Status.Phase, n)
		}
	}
	for _, name := range c.always {
		if c.deleted[name] {
			c.awaitGone(t, name, 90*time.Second)
			continue
		}
		got := c.await(t, name, "runs", 90*time.Second, func(p *corev1.Pod) bool {
			return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Running != nil
		})
		c.awaitLog(t, got, "ready")
		if starts, restarts := len(c.starts(t, name)), int(got.Status.ContainerStatuses[0].RestartCount); starts > restarts+1 {
			t.Errorf("pod %s says %d restarts, and was started %d times", name, restarts, starts)
		}
	}
	twice, _ := filepath.Glob(filepath.Join(c.dir, "mark", "*", "twice"))
	for _, path := range twice {
		text, _ := os.ReadFile(path)
		t.Errorf("two containers of pod %s ran at once: %s", filepath.Base(filepath.Dir(path)), text)
	}
	for _, name := range append(c.never, c.always...) {
		if err := c.remove(t.Context(), podsPath+"/"+name, -1); err != nil && !errors.Is(err, errNotFound) {
			t.Fatal(err)
		}
	}
	for _, name := range append(c.never, c.always...) {
		c.awaitGone(t, name, 60*time.Second)
	}
	testNothingLeft(t, c.world)
}
