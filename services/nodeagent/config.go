package nodeagent

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

// Config says which node the agent is and how it works. Its zero value is the
// node named as the host, of the cluster "dev", on containerd.
type Config struct {
	// Node is the Node object's name. Default: the host name in lower case.
	Node string
	// Cluster is the cluster's name in collections. Default "dev".
	Cluster string
	// CRI is the runtime's endpoint, "unix:///path". Default
	// unix:///run/containerd/containerd.sock. Not used when [Deps] hold a runtime.
	CRI string
	// RootDir holds what the agent keeps: volumes, back-off state, its lock.
	// Default /var/lib/deltaplane/node.
	RootDir string
	// LogRoot is where container logs are written. Default /var/log/pods.
	LogRoot string
	// HostNetworkOnly runs every pod on the node's network. Without it that happens
	// to pods that ask for it, and to all while the runtime has no network for pods.
	HostNetworkOnly bool
	// WaitForNetwork lets pods wait instead until the runtime has a network, and
	// the node be NotReady meanwhile, as the kubelet does.
	WaitForNetwork bool
	// KubeletListen is the host:port of the kubelet's API, by which kubectl logs finds the logs of
	// this node. Default: it is not served. The certificate is the agent's own.
	KubeletListen string
	// KubeletClientCA is a PEM file of who signs the client certificates of that API's callers;
	// without it they are known by tokens alone.
	KubeletClientCA string
	// Labels and Annotations are set on the Node object.
	Labels, Annotations map[string]string
	// Address is the node's in its status. Default: its first that is not loopback.
	Address string
	// Taints are given to a Node object that the agent creates.
	Taints []corev1.Taint
	// PodAPI is the API server's host:port as pods reach it; it becomes their
	// KUBERNETES_SERVICE_HOST and _PORT. Default: those of the service "kubernetes".
	PodAPI string
	// ClusterDNS are the addresses that pods with the policy ClusterFirst ask, and ClusterDomain what
	// they search in; default "cluster.local". Without ClusterDNS pods have the node's resolver.
	ClusterDNS    []string
	ClusterDomain string
	// ResolvConf is the file of the node's resolver. Default /etc/resolv.conf.
	ResolvConf string
	// MaxPods is how many pods the node says it takes. Default 110.
	MaxPods int
	// StatusQPS and StatusBurst bound the calls by which the statuses of all pods are
	// written, as --kube-api-qps does for a kubelet. Defaults 50 and 100.
	StatusQPS   float64
	StatusBurst int

	// Resync is the least time between two syncs of a pod that is well; up to half
	// is added at random. Default 1 min.
	Resync time.Duration
	// ErrorWait and TransientWait follow a sync that failed, and one that found no
	// network; up to half is added at random. Defaults 10 s and 1 s.
	ErrorWait, TransientWait time.Duration
	// Housekeeping is the time between two rounds of cleaning up. Default 2 s.
	Housekeeping time.Duration
	// Collect is the time between two collections of dead containers. Default 1 min.
	Collect time.Duration

	// Relist is the time between two looks at every pod of the runtime. Default
	// 1 s; while the runtime streams events it is 300 s.
	Relist time.Duration
	// NoEvents leaves the runtime's event stream unused.
	NoEvents bool

	// CrashLoop is how restarts are delayed. Default 10 s, 300 s, 600 s.
	CrashLoop kuberuntime.Backoff
	// ImagePull is how pulls of a missing image are delayed. Default 10 s, 300 s, 600 s.
	ImagePull kuberuntime.Backoff

	// Heartbeat is the time between two renewals of the node's lease; a quarter of
	// the lease's duration. Default 10 s.
	Heartbeat time.Duration
	// Grace is how long syncs may go on once the agent stops; containers run on
	// in any case. Default 5 s.
	Grace time.Duration

	// Admin is where metrics, readiness and profiles are served.
	Admin telemetry.AdminConfig
}

func (c Config) withDefaults() Config {
	if c.Node == "" {
		host, _ := os.Hostname()
		c.Node = strings.ToLower(cmp.Or(host, "node"))
	}
	c.Cluster = cmp.Or(c.Cluster, "dev")
	c.CRI = cmp.Or(c.CRI, "unix:///run/containerd/containerd.sock")
	c.RootDir = cmp.Or(c.RootDir, "/var/lib/deltaplane/node")
	c.LogRoot = cmp.Or(c.LogRoot, "/var/log/pods")
	c.MaxPods = cmp.Or(c.MaxPods, 110)
	c.ClusterDomain = cmp.Or(c.ClusterDomain, "cluster.local")
	c.ResolvConf = cmp.Or(c.ResolvConf, "/etc/resolv.conf")
	c.Resync = cmp.Or(c.Resync, time.Minute)
	c.ErrorWait = cmp.Or(c.ErrorWait, 10*time.Second)
	c.TransientWait = cmp.Or(c.TransientWait, time.Second)
	c.Housekeeping = cmp.Or(c.Housekeeping, 2*time.Second)
	c.Collect = cmp.Or(c.Collect, time.Minute)
	c.Relist = cmp.Or(c.Relist, time.Second)
	c.Heartbeat = cmp.Or(c.Heartbeat, 10*time.Second)
	c.Grace = cmp.Or(c.Grace, 5*time.Second)
	return c
}

// Validate reports every fault of c together.
func (c Config) Validate() error {
	c = c.withDefaults()
	faults := []error{c.Admin.Validate()}
	fault := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("nodeagent: "+format, args...))
		}
	}
	for _, msg := range validation.IsDNS1123Subdomain(c.Node) {
		fault(false, "node %q: %s", c.Node, msg)
	}
	if err := podsOf(c.Cluster).Validate(); err != nil {
		faults = append(faults, fmt.Errorf("nodeagent: cluster %q: %w", c.Cluster, err))
	}
	fault(strings.HasPrefix(c.CRI, "unix:///"), "CRI endpoint %q is not unix:///path", c.CRI)
	fault(filepath.IsAbs(c.RootDir), "root directory %q is not an absolute path", c.RootDir)
	fault(filepath.IsAbs(c.LogRoot), "log directory %q is not an absolute path", c.LogRoot)
	fault(!c.HostNetworkOnly || !c.WaitForNetwork, "a node on the host's network only cannot wait for another")
	if c.PodAPI != "" {
		_, _, ok := hostPort(c.PodAPI)
		fault(ok, "API server address for pods %q is not host:port", c.PodAPI)
	}
	if c.KubeletListen != "" {
		_, _, err := net.SplitHostPort(c.KubeletListen)
		fault(err == nil, "address of the kubelet API %q is not host:port", c.KubeletListen)
	}
	fault(c.KubeletClientCA == "" || c.KubeletListen != "", "a client CA of the kubelet API without an address of it")
	for _, server := range c.ClusterDNS {
		fault(net.ParseIP(server) != nil, "cluster DNS %q is not an IP address", server)
	}
	for _, msg := range validation.IsDNS1123Subdomain(c.ClusterDomain) {
		fault(false, "cluster domain %q: %s", c.ClusterDomain, msg)
	}
	fault(filepath.IsAbs(c.ResolvConf), "resolver file %q is not an absolute path", c.ResolvConf)
	fault(c.Address == "" || net.ParseIP(c.Address) != nil, "address %q is not an IP address", c.Address)
	fault(c.StatusQPS >= 0 && c.StatusBurst >= 0, "status QPS %v or burst %d is negative", c.StatusQPS, c.StatusBurst)
	fault(c.MaxPods > 0, "max pods %d is not above zero", c.MaxPods)
	for name, d := range map[string]time.Duration{
		"resync": c.Resync, "error wait": c.ErrorWait, "transient wait": c.TransientWait, "housekeeping": c.Housekeeping,
		"collect": c.Collect, "relist": c.Relist, "heartbeat": c.Heartbeat, "grace": c.Grace,
	} {
		fault(d > 0, "%s %v is not above zero", name, d)
	}
	fault(c.Relist >= leastRelist, "relist %v is below %v", c.Relist, leastRelist)
	for name, b := range map[string]kuberuntime.Backoff{"crash loop": c.CrashLoop, "image pull": c.ImagePull} {
		fault(b.Initial >= 0 && b.Max >= 0 && b.Reset >= 0, "%s back-off %v up to %v, reset %v: must not be negative", name, b.Initial, b.Max, b.Reset)
	}
	for key, value := range c.Labels {
		for _, msg := range validation.IsQualifiedName(key) {
			fault(false, "label %q: %s", key, msg)
		}
		for _, msg := range validation.IsValidLabelValue(value) {
			fault(false, "label %q: value %q: %s", key, value, msg)
		}
	}
	return errors.Join(faults...)
}

// hostPort splits an address into its host, which is not empty, and its port's number.
func hostPort(address string) (host string, port int32, ok bool) {
	host, text, err := net.SplitHostPort(address)
	n, bad := strconv.ParseUint(text, 10, 16)
	return host, int32(n), err == nil && bad == nil && host != "" && n > 0
}

// leastRelist keeps a slip of the unit from becoming a busy loop.
const leastRelist = 10 * time.Millisecond

func podsOf(cluster string) delta.Collection {
	return delta.Collection{Cluster: cluster, Version: "v1", Resource: "pods"}
}
