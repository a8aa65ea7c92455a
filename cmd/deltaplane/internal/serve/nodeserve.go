package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent"
	"github.com/deltaplane/deltaplane/services/nodeagent/fleet"
	"github.com/deltaplane/deltaplane/services/nodeagent/node"
	"github.com/deltaplane/deltaplane/services/nodeagent/prober"
)

// simulatedCRI is the --cri of nodes whose containers are simulated in this process.
const simulatedCRI = "simulated"

// simulatedPods is how many pods a simulated node takes: they cost next to nothing.
const simulatedPods = 10_000

// simulatedQPS is how fast each of them may write: one API server in the same process is theirs
// alone.
const simulatedQPS = 1000

// nodeFlags are the flags of node agents.
type nodeFlags struct {
	config nodeagent.Config
	taints []string
	admin  telemetry.AdminConfig
	index  string
	dial   rpc.DialConfig

	simulated int
	zones     int
	stateDir  string
}

// register adds the flags of every agent, of a process of its own or not.
func (n *nodeFlags) register(flags *pflag.FlagSet) {
	defer cli.Section(flags, cli.SectionNodes)()
	flags.DurationVar(&n.config.CrashLoop.Initial, "crash-loop-initial", 0, "wait before the second restart of a container that ends again and again; it doubles from there (default 10s)")
	flags.DurationVar(&n.config.CrashLoop.Max, "crash-loop-max", 0, "longest wait before such a restart (default 5m)")
	flags.IntVar(&n.zones, "simulated-zones", 2, "zones that simulated nodes are spread over: zone-a, zone-b, ...")
}

func newServeNode() *cobra.Command {
	var t telemetry.Config
	var n nodeFlags
	var k cli.KubeFlags
	var insecure bool
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run the pods of a node on a container runtime",
		Long: `Run the agent of a node: register the node and keep its lease, take the pods bound to it
from the index, run their containers on the container runtime that --cri names, and report
their status to the API server. Containers go on when the agent stops, and are found again.

With --cri simulated the containers are simulated in this process; annotations of their pod
say how they run. --simulated-nodes runs the agents of that many such nodes, called NAME-1,
NAME-2 and so on, in this one process; "deltaplane node stop NAME" makes one fall silent.

The agent needs the pods and nodes of the cluster mirrored, and an API server that lets it
write nodes, leases, pods and events, create tokens of service accounts, and read config maps,
secrets and services.`,
		Example: `  deltaplane serve node --kubeconfig ~/.kube/config
  deltaplane serve node --simulated-nodes 3`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n.simulated < 0 {
				return &cli.UsageError{Err: fmt.Errorf("--simulated-nodes %d is below zero", n.simulated)}
			}
			if cmd.Flags().Changed("cri") && n.simulated > 0 && n.config.CRI != simulatedCRI {
				return &cli.UsageError{Err: errors.New("--simulated-nodes run on --cri simulated alone")}
			}
			if n.config.KubeletListen != "" && n.simulates() {
				return &cli.UsageError{Err: errors.New("--kubelet-listen is for one node on a container runtime")}
			}
			client, err := k.Load()
			if err != nil {
				return err
			}
			protect(&n.admin, n.admin, insecure)
			t.Certificates = map[string]string{"admin": n.admin.TLS.CertFile, "client": n.dial.TLS.CertFile}
			return runNodes(cmd.Context(), &n, t, client)
		},
	}
	flags := cmd.Flags()
	registerClusterName(flags, &n.config.Cluster)
	end := cli.Section(flags, cli.SectionNodes)
	flags.StringVar(&n.config.Node, "node-name", "", "`name` of the node (default: the host's, or \"node\" with --simulated-nodes)")
	flags.StringToStringVar(&n.config.Labels, "node-labels", nil, "`labels` of the node, for example topology.kubernetes.io/zone=zone-a")
	flags.Lookup("node-labels").DefValue = ""
	flags.StringSliceVar(&n.taints, "register-with-taints", nil, "`taints` of a node that is created, KEY=VALUE:EFFECT")
	flags.StringVar(&n.config.PodAPI, "pod-api-address", "", "`host:port` at which pods reach the API server (default: its service \"kubernetes\")")
	flags.StringSliceVar(&n.config.ClusterDNS, "cluster-dns", nil, "`addresses` that pods with the policy ClusterFirst ask (default: those of the node's resolver)")
	flags.StringVar(&n.config.ClusterDomain, "cluster-domain", "cluster.local", "`domain` of the cluster, in which such pods search")
	flags.StringVar(&n.config.ResolvConf, "resolv-conf", "/etc/resolv.conf", "`file` of the node's resolver")
	flags.StringVar(&n.config.KubeletListen, "kubelet-listen", "", "`host:port` of the kubelet's API, for \"kubectl logs\" (default: not served)")
	flags.StringVar(&n.config.KubeletClientCA, "kubelet-client-ca", "", "`file` of the CA that signs the client certificates of its callers (default: tokens alone)")
	flags.IntVar(&n.config.MaxPods, "max-pods", 0, "pods the node says it takes (default 110, simulated 10000)")
	flags.StringVar(&n.config.CRI, "cri", "unix:///run/containerd/containerd.sock", "`endpoint` of the container runtime, unix:///PATH, or \"simulated\"")
	flags.IntVar(&n.simulated, "simulated-nodes", 0, "`number` of simulated nodes to run instead of one")
	flags.StringVar(&n.stateDir, "cri-state-dir", "", "`folder` that keeps simulated containers (default: cri under --root-dir; off keeps nothing)")
	flags.StringVar(&n.config.RootDir, "root-dir", "", "`folder` for volumes and what the agent must remember (default /var/lib/deltaplane/node; simulated: deltaplane/nodes under the user's state folder)")
	flags.StringVar(&n.config.LogRoot, "log-dir", "", "`folder` of the containers' logs (default /var/log/pods; simulated: logs under --root-dir)")
	flags.BoolVar(&n.config.HostNetworkOnly, "host-network-only", false, "run every pod on the node's network, where the runtime has no network plugin")
	flags.DurationVar(&n.config.Heartbeat, "heartbeat-every", 10*time.Second, "how often the node's lease is renewed; it lasts four times as long")
	flags.DurationVar(&n.config.Relist, "relist-every", time.Second, "how often all containers are looked at, while the runtime sends no events")
	flags.Float64Var(&n.config.StatusQPS, "kube-api-qps", 0, "calls a second, of a node, that write the statuses of its pods (default 50, simulated 1000)")
	flags.IntVar(&n.config.StatusBurst, "kube-api-burst", 0, "such calls at once (default 100, simulated 1000)")
	flags.BoolVar(&n.config.NoEvents, "no-cri-events", false, "do not follow the runtime's event stream")
	end()
	registerIndexURL(flags, &n.index)
	registerAdminListen(flags, &n.admin.Listen, "127.0.0.1:7455")
	registerAdmin(flags, &n.admin)
	registerInsecureAdmin(flags, &insecure)
	n.register(flags)
	cli.RegisterDial(flags, &n.dial)
	k.Register(flags)
	registerTelemetry(flags, &t, "info")
	cli.ShortHelp(cmd,
		"kubeconfig", "context", "in-cluster", "cluster", "node-name", "node-labels", "max-pods", "cri", "simulated-nodes", "root-dir", "log-dir",
		"host-network-only", "heartbeat-every", "index-url", "tls-ca", "tls-cert", "tls-key", "token-file", "admin-listen", "log-level")
	return cmd
}

// names are the nodes to run.
func (n *nodeFlags) names() []string {
	if n.simulated == 0 {
		return []string{n.config.Node}
	}
	names := make([]string, n.simulated)
	for i := range names {
		names[i] = cmp.Or(n.config.Node, "node") + "-" + strconv.Itoa(i+1)
	}
	return names
}

// simulates says that the containers are simulated in this process.
func (n *nodeFlags) simulates() bool { return n.simulated > 0 || n.config.CRI == simulatedCRI }

// check completes the settings and reports every fault of them together. It may be called again.
func (n *nodeFlags) check() error {
	if err := n.complete(); err != nil {
		return err
	}
	n.config.Admin = n.admin
	if !n.simulates() {
		return n.config.Validate()
	}
	// What is wrong with one of them is wrong with all.
	return errors.Join(n.admin.Validate(), n.of(0, n.names()[0]).Validate())
}

// complete fills in what simulated nodes have otherwise than real ones. Folders become absolute: a
// runtime is notified of them, and has a working directory of its own.
func (n *nodeFlags) complete() error {
	taints, err := node.ParseTaints(n.taints)
	if err != nil {
		return fmt.Errorf("--register-with-taints: %w", err)
	}
	n.config.Taints = taints
	for _, dir := range []*string{&n.config.RootDir, &n.config.LogRoot} {
		if *dir == "" {
			continue
		}
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return err
		}
		*dir = abs
	}
	if !n.simulates() {
		return nil
	}
	if n.zones < 1 || n.zones > 26 {
		return fmt.Errorf("--simulated-zones %d is not within 1 and 26", n.zones)
	}
	if n.config.RootDir == "" {
		state, err := cli.StateDir()
		if err != nil {
			return fmt.Errorf("--root-dir is required: %w", err)
		}
		n.config.RootDir = filepath.Join(state, "nodes")
	}
	n.config.LogRoot = cmp.Or(n.config.LogRoot, filepath.Join(n.config.RootDir, "logs"))
	n.config.MaxPods = cmp.Or(n.config.MaxPods, simulatedPods)
	n.config.StatusQPS, n.config.StatusBurst = cmp.Or(n.config.StatusQPS, simulatedQPS), cmp.Or(n.config.StatusBurst, simulatedQPS)
	n.config.CRI = simulatedCRI
	n.stateDir = cmp.Or(n.stateDir, filepath.Join(n.config.RootDir, "cri"))
	if n.config.Node == "" && n.simulated == 0 {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--node-name is required: %w", err)
		}
		n.config.Node = host
	}
	return nil
}

// of is the configuration of one simulated node.
func (n *nodeFlags) of(i int, name string) nodeagent.Config {
	c := n.config
	c.Node, c.CRI = name, "" // a connection is given instead
	c.RootDir = filepath.Join(c.RootDir, name)
	c.Admin = telemetry.AdminConfig{Listen: "off"} // the fleet's shows all of them
	c.Labels = map[string]string{corev1.LabelTopologyZone: "zone-" + string(rune('a'+i%n.zones))}
	maps.Copy(c.Labels, n.config.Labels)
	return c
}

// runNodes runs one agent, or those of all simulated nodes, until ctx ends.
func runNodes(ctx context.Context, n *nodeFlags, t telemetry.Config, kc *kube.Client) error {
	if err := errors.Join(t.Validate(), n.check()); err != nil {
		return &cli.UsageError{Err: err}
	}
	return withTelemetry(ctx, t, "node", func(tel *telemetry.Telemetry) error {
		traced := n.dial
		traced.Tracer = tel.Tracer
		index, err := cli.Connect(n.index, traced)
		if err != nil {
			return err
		}
		defer index.Close()
		deps := nodeagent.Deps{Kube: kc, Index: index, Telemetry: tel}
		if n.simulates() {
			return n.simulate(ctx, deps)
		}
		agent, err := nodeagent.New(n.config, deps)
		if err != nil {
			return err
		}
		return agent.Run(ctx)
	})
}

// simulate runs simulated nodes on one runtime.
func (n *nodeFlags) simulate(ctx context.Context, deps nodeagent.Deps) (err error) {
	dir := n.stateDir
	if dir == "off" {
		dir = ""
	}
	runtime, err := criruntime.New(criruntime.Config{Dir: dir, Log: deps.Telemetry.Log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, runtime.Close()) }()
	deps.Runtime, deps.Probe = runtime.Conn(), prober.Passes
	configs := map[string]nodeagent.Config{}
	for i, name := range n.names() {
		configs[name] = n.of(i, name)
	}
	all, err := fleet.New(fleet.Config{Cluster: n.config.Cluster, Nodes: n.names(), Admin: n.admin}, fleet.Deps{
		Index: client.NewIndex(deps.Index), Telemetry: deps.Telemetry,
		Agent: func(name string, tel *telemetry.Telemetry) (fleet.Agent, error) {
			own := deps
			own.Telemetry = tel
			return nodeagent.New(configs[name], own)
		},
	})
	if err != nil {
		return err
	}
	return all.Run(ctx)
}
