package serve

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/core/podgc"
	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/controllers"
	"github.com/deltaplane/deltaplane/services/controllers/admission"
)

// controlFlags are the flags of the controllers service.
type controlFlags struct {
	config controllers.Config
	names  []string
	index  string
	queue  string
	dial   rpc.DialConfig

	admission   admission.Config
	tolerations taint.Defaults
}

func (c *controlFlags) register(flags *pflag.FlagSet) {
	defer cli.Section(flags, cli.SectionControllers)()
	flags.StringSliceVar(&c.names, "controllers", controllers.Defaults(), "`names` of the controllers to run; there are: "+strings.Join(controllers.Names(), ", "))
	flags.IntVar(&c.config.Concurrency, "concurrency", 8, "keys each controller works on at once")
	flags.DurationVar(&c.config.Lease, "lease", 0, "how long a worker may hold a key without extending (default: the queue's, 30s)")
	flags.DurationVar(&c.config.Grace, "grace", 20*time.Second, "how long reconciles may go on when the service stops")
	flags.DurationVar(&c.config.Resync, "resync", 10*time.Hour, "time between two rounds over every key; below zero for none")
	flags.StringVar(&c.config.Identity, "identity", "", "`name` of this replica in sessions and Events (default: the host's)")
	flags.BoolVar(&c.config.Taints.Numeric, "numeric-tolerations", false, "let the operators Lt and Gt of tolerations match, for clusters with the feature gate TaintTolerationComparisonOperators")
	c.config.PodGC.Threshold = flags.Int("terminated-pod-gc-threshold", podgc.DefaultThreshold, "ended pods above which podgc deletes the oldest; 0 or less for any number")
	c.registerNodes(flags)
	cli.RegisterDial(flags, &c.dial)
}

// registerAdmission are the flags of the webhook; the names of its seconds are kube-apiserver's.
func (c *controlFlags) registerAdmission(flags *pflag.FlagSet) {
	defer cli.Section(flags, cli.SectionControllers)()
	flags.StringVar(&c.admission.Listen, "admission-listen", "", "`address` of the webhook that gives pods the default tolerations, see deploy/admission.yaml (default: none)")
	flags.StringVar(&c.admission.CertFile, "admission-tls-cert", "", "`file` with the webhook's certificate, PEM")
	flags.StringVar(&c.admission.KeyFile, "admission-tls-key", "", "`file` with the key of the webhook's certificate, PEM")
	registerTolerations(flags, &c.tolerations)
}

// registerTolerations are the seconds of the default tolerations, by kube-apiserver's names.
func registerTolerations(flags *pflag.FlagSet, d *taint.Defaults) {
	defer cli.Section(flags, cli.SectionControllers)()
	flags.Int64Var(&d.NotReady, "default-not-ready-toleration-seconds", taint.DefaultSeconds, "how long pods stay on a node that is not ready, unless they say so")
	flags.Int64Var(&d.Unreachable, "default-unreachable-toleration-seconds", taint.DefaultSeconds, "how long pods stay on a node that cannot be reached, unless they say so")
}

// registerNodes are the numbers of the node lifecycle controller, by kube-controller-manager's
// names.
func (c *controlFlags) registerNodes(flags *pflag.FlagSet) {
	n := nodelifecycle.Rules{}.WithDefaults()
	c.config.Nodes.Rate, c.config.Nodes.SlowRate = new(*n.Rate), new(*n.SlowRate)
	flags.DurationVar(&c.config.Nodes.Grace, "node-monitor-grace-period", n.Grace, "how long a node may be silent before it is called unknown")
	flags.DurationVar(&c.config.Nodes.StartupGrace, "node-startup-grace-period", n.StartupGrace, "how long a node may take to post its first status")
	flags.Float64Var(&c.config.Nodes.Threshold, "unhealthy-zone-threshold", n.Threshold, "share of a zone's nodes that are not ready from which it is partially disrupted")
	flags.IntVar(&c.config.Nodes.LargeZone, "large-cluster-size-threshold", n.LargeZone, "nodes above which a partially disrupted zone goes on at the secondary rate, instead of not at all")
	flags.Float64Var(c.config.Nodes.Rate, "node-eviction-rate", *n.Rate, "nodes a second, in each zone, that may be given a NoExecute taint")
	flags.Float64Var(c.config.Nodes.SlowRate, "secondary-node-eviction-rate", *n.SlowRate, "the same in a large zone that is partially disrupted")
}

func newServeControllers() *cobra.Command {
	var t telemetry.Config
	var c controlFlags
	var log natsFlags
	var k cli.KubeFlags
	var insecure bool
	cmd := &cobra.Command{
		Use:   "controllers",
		Short: "Run controllers: work off keys, write to the API server",
		Long: `Run controllers. Any number of replicas work side by side, without leader election: the
queue hands each key to one of them at a time. They stop in two steps: first they take no
more keys, then, after --grace, they cancel what they are at.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := k.Load()
			if err != nil {
				return err
			}
			protect(&c.config.Admin, c.config.Admin, insecure)
			t.Certificates = map[string]string{"admin": c.config.Admin.TLS.CertFile, "client": c.dial.TLS.CertFile, "nats": log.security.TLS.CertFile}
			return runControllers(cmd.Context(), &c, t, &log, client)
		},
	}
	flags := cmd.Flags()
	registerClusterName(flags, &c.config.Cluster)
	registerAdminListen(flags, &c.config.Admin.Listen, "127.0.0.1:7454")
	registerAdmin(flags, &c.config.Admin)
	registerInsecureAdmin(flags, &insecure)
	registerIndexURL(flags, &c.index)
	end := cli.Section(flags, cli.SectionCalls)
	flags.StringVar(&c.queue, "queue-url", cli.DefaultQueueAddr, "`address` of the queue service")
	end()
	c.register(flags)
	c.registerAdmission(flags)
	log.register(flags, defaultNATSURL)
	k.Register(flags)
	registerTelemetry(flags, &t, "info")
	cli.ShortHelp(cmd,
		"kubeconfig", "context", "in-cluster", "cluster", "controllers", "concurrency", "grace", "node-monitor-grace-period", "index-url", "queue-url",
		"tls-ca", "tls-cert", "tls-key", "token-file", "nats-url", "nats-creds", "nats-nkey-file", "admission-listen", "admin-listen", "log-level")
	return cmd
}

func runControllers(ctx context.Context, c *controlFlags, t telemetry.Config, log *natsFlags, client *kube.Client) error {
	c.config.Controllers = c.names
	if c.admission.Listen != "" {
		c.admission.Defaults = &c.tolerations
		c.config.Admission = &c.admission
	}
	if err := errors.Join(t.Validate(), c.config.Validate(), log.check()); err != nil {
		return &cli.UsageError{Err: err}
	}
	return withTelemetry(ctx, t, "controllers", func(tel *telemetry.Telemetry) error {
		conn, err := log.connectReader(ctx, "controllers", tel.Log)
		if err != nil {
			return err
		}
		defer conn.Close()
		traced := c.dial
		traced.Tracer = tel.Tracer
		index, err := cli.Connect(c.index, traced)
		if err != nil {
			return err
		}
		defer index.Close()
		queue, err := cli.Connect(c.queue, traced)
		if err != nil {
			return err
		}
		defer queue.Close()
		service, err := controllers.New(c.config, controllers.Deps{Log: conn, Kube: client, Index: index, Queue: queue, Telemetry: tel})
		if err != nil {
			return err
		}
		return service.Run(ctx)
	})
}
