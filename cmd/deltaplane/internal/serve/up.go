package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/dirlock"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/internal/telemetry/recent"
	"github.com/deltaplane/deltaplane/internal/tracing"
	"github.com/deltaplane/deltaplane/services/controllers"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// upFlags are the flags of `up`.
type upFlags struct {
	telemetry   telemetry.Config
	security    security
	dataDir     string
	noDemo      bool
	skip        []string
	natsListen  string
	log         natsFlags
	encryption  encryptionFlags
	kube        cli.KubeFlags
	devcluster  devcluster.Config
	reflecting  reflecting
	indexer     indexer.Config
	queue       queueFlags
	control     controlFlags
	nodes       nodeFlags
	gateway     gatewayFlags
	console     consoleFlags
	tolerations taint.Defaults
	ownCluster  bool // the dev cluster is part of this process
}

// The parts `up --skip` can leave out.
var skippable = []string{"reflector", "indexer", "queue", "controllers", "nodes", "gateway", "console"}

// The dev cluster's nodes beat faster than Kubernetes' and are given up sooner, so that a node's
// failure can be watched.
const (
	devHeartbeat = 5 * time.Second
	devGrace     = 20 * time.Second
)

// NewUp is the command "up".
func NewUp() *cobra.Command {
	var u upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run everything in one process, with a dev cluster unless a real one is named",
		Long: `Run the whole pipeline in one process with nothing installed: an embedded NATS server, the
memory queue engine, a small dev cluster, agents of --nodes simulated nodes that run its
pods, and every service, over the same protocols as when each has a machine of its own.
State is kept under --data-dir and found again at the next start, also after a crash.

On the dev cluster every controller runs, and a node that is silent for 20 s is given up
(elsewhere 50 s): "deltaplane demo node-failure" shows it.

--kubeconfig (or --api-url, --in-cluster), --nats-url and --redis-url put real servers in
place of the embedded parts, one by one. Against a cluster that is not the dev cluster no
controller runs unless --controllers names it: a second Job controller beside the cluster's
own would create every pod twice.`,
		Example: `  deltaplane up
  deltaplane up --kubeconfig ~/.kube/config --cluster prod
  deltaplane up --skip controllers        # and run "serve controllers" in a debugger`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runUp(cmd, &u) },
	}
	flags := cmd.Flags()
	end := cli.Section(flags, cli.SectionRun)
	flags.StringVar(&u.dataDir, "data-dir", "", "`folder` for the log, the queues and the dev cluster (default: deltaplane under the user's state folder)")
	flags.BoolVar(&u.noDemo, "no-demo", false, "do not create the demo Jobs in the dev cluster")
	flags.StringSliceVar(&u.skip, "skip", nil, "`services` to leave out, to be run by \"serve\" instead: "+strings.Join(skippable, ", "))
	end()
	end = cli.Section(flags, cli.SectionAddresses)
	flags.StringVar(&u.natsListen, "nats-listen", "127.0.0.1:7444", "`address` of the embedded NATS server for other processes; off for none")
	flags.StringVar(&u.devcluster.Listen, "api-listen", "127.0.0.1:7448", "`address` of the dev cluster's API")
	flags.StringVar(&u.control.config.Admin.Listen, "controllers-admin-listen", "127.0.0.1:7454", "`address` of the controllers' /metrics, /healthz and /readyz")
	flags.StringVar(&u.nodes.admin.Listen, "nodes-admin-listen", "127.0.0.1:7455", "`address` of the nodes' /metrics, /healthz and /readyz; off for none")
	end()
	registerServer(flags, "index-", &u.indexer.RPC, &u.indexer.Admin, cli.DefaultIndexAddr, "127.0.0.1:7451")
	registerMemory(flags, &u.indexer)
	registerIndexer(flags, &u.indexer)
	registerServer(flags, "queue-", &u.queue.config.RPC, &u.queue.config.Admin, cli.DefaultQueueAddr, "127.0.0.1:7452")
	registerServer(flags, "reflector-", &u.reflecting.config.RPC, &u.reflecting.config.Admin, cli.DefaultReflectorAddr, "127.0.0.1:7453")
	u.log.register(flags, "")
	u.encryption.register(flags)
	u.kube.Register(flags)
	// DELTAPLANE_API_URL leads commands to a dev cluster, also to that of the last `up`: the next must
	// not take it for a cluster that is there already.
	url := flags.Lookup("api-url")
	url.Usage = "`URL` of an API server that needs no credentials, in place of the dev cluster; not read from the environment"
	url.Annotations[cli.NoEnvironment] = []string{}
	u.reflecting.config.KeepManagedFields = true // what the gateway answers must be whole
	u.reflecting.register(flags)
	u.gateway.register(flags, "gateway-")
	u.console.register(flags, "console-")
	u.queue.register(flags)
	u.control.register(flags)
	flags.Lookup("controllers").Usage = "`names` of the controllers to run (default: all on the dev cluster, none elsewhere); there are: " + strings.Join(controllers.Names(), ", ")
	flags.Lookup("controllers").DefValue = "[]"
	registerTolerations(flags, &u.tolerations)
	end = cli.Section(flags, cli.SectionNodes)
	flags.IntVar(&u.nodes.simulated, "nodes", 3, "simulated `nodes` of the dev cluster; 0 for none")
	flags.DurationVar(&u.nodes.config.Heartbeat, "heartbeat-every", devHeartbeat, "how often these nodes renew their leases")
	end()
	u.nodes.register(flags)
	registerTelemetry(flags, &u.telemetry, "warn")
	u.security.register(flags)
	cli.ShortHelp(cmd,
		"data-dir", "skip", "no-demo", "kubeconfig", "context", "api-url", "cluster", "resources", "nats-url", "redis-url", "index-memory-budget",
		"controllers", "nodes", "api-listen", "index-listen", "queue-listen", "reflector-listen", "console-listen", "insecure", "log-level")
	return cmd
}

// complete fills in what depends on other flags, and reports every fault together.
func (u *upFlags) complete(cmd *cobra.Command) error {
	policy, err := u.encryption.policy()
	errs := []error{err, u.reflecting.encrypted(policy), u.reflecting.read(&u.kube)}
	u.indexer.Encryption = policy
	u.log.encrypt(policy)
	u.ownCluster = !u.kube.Given()
	u.telemetry.Writes = tracing.NewWrites()
	if u.telemetry.OTLPEndpoint == "" && !standardCollector(os.LookupEnv) {
		u.telemetry.Recent = recent.New()
		// A trace may name what a caller may not see.
		if a := u.security.admin; u.security.open() || a.TokenFile != "" || a.TLS.CAFile != "" {
			u.security.admin.Traces = u.telemetry.Recent
		}
	}
	for _, name := range u.skip {
		if !slices.Contains(skippable, name) {
			errs = append(errs, fmt.Errorf("--skip %q: want %s", name, strings.Join(skippable, ", ")))
		}
	}
	if u.dataDir == "" {
		state, err := cli.StateDir()
		if err != nil {
			errs = append(errs, fmt.Errorf("--data-dir is required: %w", err))
		}
		u.dataDir = state
	}
	u.completeCluster(cmd.Flags())
	if u.queue.config.RedisURL == "" {
		u.queue.config.DataDir = filepath.Join(u.dataDir, "queue")
	}
	u.indexer.DataDir = filepath.Join(u.dataDir, "index")
	errs = append(errs, u.security.apply(&u.indexer.RPC, &u.indexer.Admin, &u.indexer.Access))
	u.queue.config.Access, u.reflecting.config.Access = u.indexer.Access, u.indexer.Access
	for _, c := range []struct {
		rpc   *rpc.ServerConfig
		admin *telemetry.AdminConfig
	}{{&u.queue.config.RPC, &u.queue.config.Admin}, {&u.reflecting.config.RPC, &u.reflecting.config.Admin}} {
		u.security.secure(c.rpc, c.admin)
	}
	protect(&u.control.config.Admin, u.security.admin, u.security.insecure)
	protect(&u.nodes.admin, u.security.admin, u.security.insecure)
	protect(&u.gateway.config.Admin, u.security.admin, u.security.insecure)
	protect(&u.console.config.Admin, u.security.admin, u.security.insecure)
	u.gateway.config.Insecure = u.security.insecure
	u.telemetry.Certificates = u.security.certificates()
	maps.Copy(u.telemetry.Certificates, map[string]string{"client": u.control.dial.TLS.CertFile, "nats": u.log.security.TLS.CertFile, "redis": u.queue.tls.CertFile})
	u.control.config.Cluster = u.reflecting.config.Cluster
	u.control.index, u.control.queue = u.indexer.RPC.Listen, u.queue.config.RPC.Listen
	u.control.config.Controllers = u.control.names
	u.nodes.config.Cluster, u.nodes.index, u.nodes.dial = u.reflecting.config.Cluster, u.indexer.RPC.Listen, u.control.dial
	u.gateway.config.Cluster, u.gateway.index, u.gateway.dial = u.reflecting.config.Cluster, u.indexer.RPC.Listen, u.control.dial
	u.gateway.config.TLS.CertFile, u.gateway.config.TLS.KeyFile = u.security.tls.CertFile, u.security.tls.KeyFile
	u.completeConsole()
	if u.security.open() {
		u.console.kept = u.telemetry.Recent
	}
	u.nodes.config.RootDir = filepath.Join(u.dataDir, "nodes")
	errs = append(errs, u.telemetry.Validate(), u.reflecting.config.Validate(), u.indexer.Validate(), u.queue.check(), u.log.check())
	if u.runs("controllers") {
		errs = append(errs, u.control.config.Validate())
	}
	if u.runs("gateway") {
		errs = append(errs, u.gateway.config.Validate())
	}
	if u.runs("console") {
		errs = append(errs, u.console.check())
	}
	if u.runs("nodes") {
		errs = append(errs, u.nodes.check())
	}
	if u.ownCluster && u.nodes.simulated < 0 {
		errs = append(errs, fmt.Errorf("--nodes %d is below zero", u.nodes.simulated))
	}
	if u.runs("controllers") || u.runs("nodes") || u.runs("gateway") {
		if (u.security.auth.TokenFile != "" || u.indexer.Access.Set()) && u.control.dial.TokenFile == "" && u.control.dial.TLS.CertFile == "" {
			errs = append(errs, errors.New("--auth-token-file, --access-policy and --access-cluster need --token-file or --tls-cert as well: controllers, nodes and the gateway of this process call its services"))
		}
	}
	if u.security.tls.CertFile != "" && !u.control.dial.UseTLS && (u.runs("controllers") || u.runs("nodes") || u.runs("gateway") || u.runs("console")) {
		errs = append(errs, errors.New("--serve-tls-cert needs --tls as well: controllers, nodes, the gateway and the console of this process call its services"))
	}
	if err := errors.Join(errs...); err != nil {
		return &cli.UsageError{Err: err}
	}
	return nil
}

// completeConsole has the console call the services of this process as its controllers do, but for
// their token.
func (u *upFlags) completeConsole() {
	c := &u.console
	c.config.Insecure, c.dial = u.security.insecure, u.control.dial
	c.dial.TokenFile = ""
	c.config.TLS.CertFile, c.config.TLS.KeyFile = u.security.tls.CertFile, u.security.tls.KeyFile
	c.addresses.Index, c.addresses.Queue, c.addresses.Reflector = u.indexer.RPC.Listen, u.queue.config.RPC.Listen, u.reflecting.config.RPC.Listen
}

// completeCluster fills in what depends on whether the dev cluster is part of this process.
func (u *upFlags) completeCluster(flags *pflag.FlagSet) {
	if !u.ownCluster {
		u.nodes.simulated = 0
		if !flags.Changed("controllers") {
			u.control.names = nil
		}
		return
	}
	u.devcluster.DefaultTolerations = &u.tolerations
	if !flags.Changed("controllers") {
		u.control.names = controllers.Names()
	}
	if !flags.Changed("node-monitor-grace-period") {
		u.control.config.Nodes.Grace = devGrace
	}
}

// runs says whether a service that can be skipped is part of this process.
func (u *upFlags) runs(service string) bool {
	switch {
	case slices.Contains(u.skip, service):
		return false
	case service == "controllers":
		return len(u.control.names) > 0
	case service == "nodes":
		return u.nodes.simulated > 0
	}
	return true
}

func runUp(cmd *cobra.Command, u *upFlags) (err error) {
	if err := u.complete(cmd); err != nil {
		return err
	}
	unlock, err := lock(u.dataDir)
	if err != nil {
		return err
	}
	defer unlock()
	ctx := cmd.Context()
	began := time.Now()
	parts := newStack()
	defer func() { err = errors.Join(err, parts.close()) }()

	if u.log.config.URL == "" {
		server, err := u.startNATS()
		if err != nil {
			return err
		}
		// The first part to start is the last to stop.
		parts.start(ctx, "nats", func(ctx context.Context) error {
			<-ctx.Done()
			server.Stop()
			return nil
		})
	}
	client, err := u.startCluster(ctx, parts)
	if err == nil {
		err = u.certify()
	}
	if err != nil {
		return err
	}
	for _, p := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"queue", func(ctx context.Context) error { return runQueue(ctx, &u.queue, u.telemetry) }},
		{"indexer", func(ctx context.Context) error { return runIndexer(ctx, u.indexer, besideIndexer, u.telemetry, &u.log) }},
		{"reflector", func(ctx context.Context) error {
			return runReflector(ctx, u.reflecting.config, u.telemetry, &u.log, client)
		}},
		{"controllers", func(ctx context.Context) error {
			u.listening(ctx, "queue", u.queue.config.RPC.Listen)
			u.listening(ctx, "indexer", u.indexer.RPC.Listen)
			return runControllers(ctx, &u.control, u.telemetry, &u.log, client)
		}},
		{"gateway", func(ctx context.Context) error {
			u.listening(ctx, "indexer", u.indexer.RPC.Listen)
			return runGateway(ctx, &u.gateway, u.telemetry, client, u.kube.Source())
		}},
		{"console", func(ctx context.Context) error {
			u.listening(ctx, "indexer", u.indexer.RPC.Listen)
			return runConsole(ctx, &u.console, u.telemetry)
		}},
		{"nodes", func(ctx context.Context) error {
			u.listening(ctx, "indexer", u.indexer.RPC.Listen)
			return runNodes(ctx, &u.nodes, u.telemetry, client)
		}},
	} {
		if u.runs(p.name) {
			parts.start(ctx, p.name, p.run)
		}
	}
	// What is shown below must not hold up a part's failure or an interrupt.
	greeted, stopGreeting := context.WithCancel(ctx)
	defer stopGreeting()
	parts.start(ctx, "greeting", func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, stopGreeting)
		defer stop()
		if err := u.greet(greeted, cmd.Flags(), cmd.OutOrStdout(), client, began); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
	return parts.wait(ctx)
}

// listening waits a moment for a service of this process, so that those who call it do not begin
// with a warning.
func (u *upFlags) listening(ctx context.Context, service, address string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for u.runs(service) && ctx.Err() == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// startNATS runs the embedded server and points every part at it.
func (u *upFlags) startNATS() (*embedded.NATS, error) {
	listen := u.natsListen
	if listen == "off" {
		listen = ""
	}
	server, err := embedded.StartNATS(embedded.NATSConfig{Dir: filepath.Join(u.dataDir, "nats"), Listen: listen})
	if err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	u.log.config.Options = append(u.log.config.Options, server.InProcess())
	return server, nil
}

// startCluster starts the dev cluster, unless a real one is named, and returns a client of it.
func (u *upFlags) startCluster(ctx context.Context, parts *stack) (*kube.Client, error) {
	if !u.ownCluster {
		return u.kube.Load()
	}
	u.devcluster.DataDir = filepath.Join(u.dataDir, "cluster")
	ready := make(chan string, 1)
	parts.start(ctx, "dev cluster", func(ctx context.Context) error {
		return withTelemetry(ctx, u.telemetry, "devcluster", func(tel *telemetry.Telemetry) error {
			cluster, err := devcluster.New(u.devcluster, tel.Log)
			if err != nil {
				return err
			}
			go func() {
				select {
				case <-cluster.Ready():
					ready <- cluster.URL()
				case <-ctx.Done():
				}
			}()
			return cluster.Run(ctx)
		})
	})
	select {
	case url := <-ready:
		u.kube.Config.URL = url
		return u.kube.Load()
	case p := <-parts.ended:
		return nil, p.fault()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// lock keeps a second `up` out of the data folder.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, &cli.UsageError{Err: fmt.Errorf("--data-dir: %w", err)}
	}
	file, err := dirlock.Lock(dir)
	switch {
	case errors.Is(err, dirlock.ErrTaken):
		return nil, fmt.Errorf("--data-dir %s is used by another deltaplane", dir)
	case err != nil:
		return nil, &cli.UsageError{Err: fmt.Errorf("--data-dir: %w", err)}
	}
	return func() { _ = file.Close() }, nil
}
