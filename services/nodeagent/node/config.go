package node

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Config says what the node is. Name is needed.
type Config struct {
	Name string
	// Instance is the agent's own name: the same for an agent that is started again on
	// the same directory, so that it need not wait for its former self; see [Instance].
	// Default a random one.
	Instance string
	// Labels and Annotations are put on the node; the host name's, the system's and the
	// architecture's labels are there without being named. Taints are given to a node that is created.
	Labels, Annotations map[string]string
	Taints              []corev1.Taint
	// Capacity defaults to what this machine has and 110 pods, Allocatable to Capacity.
	Capacity, Allocatable corev1.ResourceList
	// Addresses default to the host name and this machine's first address that is not loopback.
	Addresses []corev1.NodeAddress
	// KubeletPort is where the kubelet's API is served on the node; 0 is nowhere.
	KubeletPort int32
	// ProviderID is given to a node that is created.
	ProviderID string
	// HeartbeatEvery is how often the lease is renewed; it lasts four times as long. 10 s.
	HeartbeatEvery time.Duration
	// CheckEvery is how often the node's conditions are looked at; 10 s. ReportEvery is
	// how often its status is written when nothing changed; 5 min.
	CheckEvery, ReportEvery time.Duration
	// PressureHold is how long a pressure is reported after it went; 5 min, negative not at all.
	PressureHold time.Duration
	// Info, if set, is asked for what is known of the node's system, such as the runtime's
	// version; what it leaves empty is found out.
	Info func() corev1.NodeSystemInfo
	// Event, if set, is told when a condition that the agent keeps comes or goes, in the kubelet's
	// reasons, such as NodeNotReady.
	Event func(reason, message string)
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// withDefaults fills c in, and reports every fault together.
func (c Config) withDefaults() (Config, error) {
	var faults []error
	for _, problem := range validation.IsDNS1123Subdomain(c.Name) {
		faults = append(faults, fmt.Errorf("node: name %q: %s", c.Name, problem))
	}
	for k, v := range c.Labels {
		for _, problem := range append(validation.IsQualifiedName(k), validation.IsValidLabelValue(v)...) {
			faults = append(faults, fmt.Errorf("node: label %s=%q: %s", k, v, problem))
		}
	}
	c.Instance = cmp.Or(c.Instance, rand.Text())
	c.HeartbeatEvery, c.CheckEvery, c.ReportEvery = cmp.Or(c.HeartbeatEvery, 10*time.Second), cmp.Or(c.CheckEvery, 10*time.Second), cmp.Or(c.ReportEvery, 5*time.Minute)
	c.PressureHold = cmp.Or(c.PressureHold, 5*time.Minute)
	for name, d := range map[string]time.Duration{"heartbeat": c.HeartbeatEvery, "check": c.CheckEvery, "report": c.ReportEvery} {
		if d < 0 {
			faults = append(faults, fmt.Errorf("node: %s every %v is below zero", name, d))
		}
	}
	labels := map[string]string{corev1.LabelHostname: c.Name, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH}
	maps.Copy(labels, c.Labels)
	c.Labels = labels
	if c.Capacity == nil {
		c.Capacity = Capacity("")
	}
	if c.Allocatable == nil {
		c.Allocatable = c.Capacity
	}
	if c.Addresses == nil {
		c.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ownAddress()}, {Type: corev1.NodeHostName, Address: c.Name}}
	}
	if c.Info == nil {
		c.Info = func() corev1.NodeSystemInfo { return corev1.NodeSystemInfo{} }
	}
	if c.Event == nil {
		c.Event = func(string, string) {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, errors.Join(faults...)
}

// ownAddress is this machine's first global address, the loopback one where there is none.
func ownAddress() string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "127.0.0.1"
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			return ip.IP.String()
		}
	}
	return "127.0.0.1"
}
