package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// NewServe is the command "serve" and those below it.
func NewServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve SERVICE",
		Short: "Run one service",
		Long: `Run one service in the foreground until it is interrupted. Services find each other by
address and may start in any order, also before NATS and Redis: what one waits for is said
by /readyz of its admin port and by its log, and its health is NOT_SERVING meanwhile.`,
	}
	cmd.AddCommand(newServeReflector(), newServeIndexer(), newServeQueue(), newServeGateway(), newServeConsole(), newServeControllers(), newServeNode(), newServeDevcluster())
	cli.Group(cmd)
	return cmd
}

// withTelemetry runs a service with its own telemetry, and sends what is left of it at the end.
func withTelemetry(ctx context.Context, c telemetry.Config, service string, run func(*telemetry.Telemetry) error) error {
	c.OTLPFromEnvironment = standardCollector(os.LookupEnv)
	c.Service, c.Version = service, cli.BuildVersion()
	tel, err := telemetry.Setup(ctx, c)
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	err = run(tel)
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	return errors.Join(err, tel.Shutdown(flush))
}

// standardCollector says whether OpenTelemetry's own variables name a collector.
func standardCollector(lookup func(string) (string, bool)) bool {
	if off, _ := lookup("OTEL_SDK_DISABLED"); strings.EqualFold(off, "true") {
		return false
	}
	if exporter, _ := lookup("OTEL_TRACES_EXPORTER"); exporter != "" && exporter != "otlp" {
		return false
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		if endpoint, _ := lookup(name); endpoint != "" {
			return true
		}
	}
	return false
}

// serving are the flags every `serve` command has.
type serving struct {
	telemetry telemetry.Config
	security  security
}

func (s *serving) register(flags *pflag.FlagSet, c *rpc.ServerConfig, admin *telemetry.AdminConfig, listen, adminListen string) {
	registerServer(flags, "", c, admin, listen, adminListen)
	registerTelemetry(flags, &s.telemetry, "info")
	s.security.register(flags)
}

// shows has the expiry of certificates shown, those of the servers among them.
func (s *serving) shows(others map[string]string) {
	s.telemetry.Certificates = s.security.certificates()
	maps.Copy(s.telemetry.Certificates, others)
}

func newServeIndexer() *cobra.Command {
	var s serving
	var cfg indexer.Config
	var log natsFlags
	var encryption encryptionFlags
	cmd := &cobra.Command{
		Use:   "indexer",
		Short: "Serve the index: reads of mirrored collections from memory",
		Long: `Follow every log found in NATS and answer IndexService from memory. A collection is
served once its current epoch has been read completely; until then its reads fail with
COLLECTION_NOT_SYNCED. It may start long before the reflector.

With --index-data-dir a restart takes a second or so instead of reading every log from its
start. The log stays the truth: a checkpoint that is damaged, of another version or too old
is named in the log and not used. The folder belongs to one process.

--index-memory-budget bounds what collections take, what rings of changes keep for watches
among it. Beside it requests, page snapshots and the process itself may hold up to about
576 MiB (about 384 MiB with a budget below 512Mi), messages for watches that lag up to 64 MiB
for each collection, and a quarter of all that is left for garbage: give a container 1.25
times the sum, 3.2 GiB for 2Gi, and up to 80 MiB more for each collection that slow watches
read. The garbage collector is held to that limit, unless GOMEMLIMIT is set; without a budget
it is not, and the heap may reach twice what lives.

Health and /readyz tell the same: SERVING once every log was read to its end. While NATS is
away a replica goes on serving what it has, as stale, and /readyz?verbose has that as a
detail, like checkpoints that cannot be written.

Any number of replicas may serve behind one name. Told to stop, one says NOT_SERVING, goes
on answering for --drain-grace, then sends watches elsewhere and lets calls finish.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			policy, err := encryption.policy()
			if err := errors.Join(s.security.apply(&cfg.RPC, &cfg.Admin, &cfg.Access), err); err != nil {
				return &cli.UsageError{Err: err}
			}
			cfg.Encryption = policy
			log.encrypt(policy)
			s.shows(map[string]string{"nats": log.security.TLS.CertFile})
			return runIndexer(cmd.Context(), cfg, 0, s.telemetry, &log)
		},
	}
	s.register(cmd.Flags(), &cfg.RPC, &cfg.Admin, cli.DefaultIndexAddr, "127.0.0.1:7451")
	log.register(cmd.Flags(), defaultNATSURL)
	encryption.register(cmd.Flags())
	registerLimits(cmd.Flags(), "", &cfg.RPC, time.Second)
	registerIndexer(cmd.Flags(), &cfg)
	end := cli.Section(cmd.Flags(), cli.SectionIndex)
	cmd.Flags().StringVar(&cfg.DataDir, "index-data-dir", "", "`folder` for checkpoints: a restart reads them, and from the log only what came since (default: none, the whole log is read)")
	cmd.Flags().StringSliceVar(&cfg.Collections, "collections", nil, "whole `names` of the collections to follow, for example dev/pods.v1 (default: every one that has a log)")
	cmd.Flags().DurationVar(&cfg.ForgetAfter, "forget-after", 0, "how long a collection whose log was deleted is still served, as stale (default 1m)")
	registerMemory(cmd.Flags(), &cfg)
	cmd.Flags().StringVar(&cfg.Replica, "replica", "", "`name` of this replica in answers and page tokens (default: random)")
	end()
	cli.ShortHelp(cmd,
		"nats-url", "nats-creds", "nats-nkey-file", "nats-tls-ca", "nats-tls-cert", "nats-tls-key", "index-data-dir", "index-memory-budget", "collections",
		"listen", "admin-listen", "serve-tls-cert", "serve-tls-key", "serve-tls-client-ca", "auth-token-file", "access-policy", "access-cluster",
		"encryption-key-file", "insecure", "log-level")
	return cmd
}

func newServeQueue() *cobra.Command {
	var s serving
	var q queueFlags
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "Serve the work queues, kept in Redis or in memory",
		Long: `Serve the work queues. With --redis-url any number of queue services share one store and
none of them holds anything of its own; without it queues live in this process, and in the
folder --queue-data-dir names so that they survive it.

Redis may be one server, a master that sentinels watch, or a cluster:

  redis://HOST:PORT[/DB]
  redis+sentinel://HOST[:PORT],HOST,HOST/MASTER[/DB]
  redis+cluster://HOST[:PORT],HOST,HOST

and each with TLS: rediss, rediss+sentinel, rediss+cluster. USER:PASSWORD@ may stand before
the hosts, though --redis-password-file keeps the password out of the list of processes.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.security.apply(&q.config.RPC, &q.config.Admin, &q.config.Access); err != nil {
				return &cli.UsageError{Err: err}
			}
			s.shows(map[string]string{"redis": q.tls.CertFile})
			return runQueue(cmd.Context(), &q, s.telemetry)
		},
	}
	s.register(cmd.Flags(), &q.config.RPC, &q.config.Admin, cli.DefaultQueueAddr, "127.0.0.1:7452")
	q.register(cmd.Flags())
	registerLimits(cmd.Flags(), "", &q.config.RPC, 0)
	end := cli.Section(cmd.Flags(), cli.SectionQueues)
	cmd.Flags().StringVar(&q.config.DataDir, "queue-data-dir", "", "`folder` that keeps the memory engine's queues (default: memory only)")
	end()
	cli.ShortHelp(cmd,
		"redis-url", "redis-username", "redis-password-file", "redis-tls-ca", "redis-tls-cert", "redis-tls-key", "redis-prefix", "queue-data-dir", "queue-fsync",
		"listen", "admin-listen", "serve-tls-cert", "serve-tls-key", "serve-tls-client-ca", "auth-token-file", "access-policy", "access-cluster",
		"insecure", "log-level", "log-format")
	return cmd
}

func runQueue(ctx context.Context, q *queueFlags, t telemetry.Config) error {
	cfg := q.config
	if err := errors.Join(t.Validate(), q.check(), q.readSecrets(&cfg)); err != nil {
		return &cli.UsageError{Err: err}
	}
	return withTelemetry(ctx, t, "queue", func(tel *telemetry.Telemetry) error {
		service, err := queue.New(cfg, tel)
		if err != nil && cfg.RedisURL != "" { // it has not connected yet
			return &cli.UsageError{Err: fmt.Errorf("--redis-url: %w", err)}
		}
		if err != nil {
			return err
		}
		err = service.Run(ctx)
		for _, rejected := range []error{engine.ErrDenied, engine.ErrUnsuitable, engine.ErrEviction} {
			if errors.Is(err, rejected) {
				return fmt.Errorf("--redis-url: %w", err)
			}
		}
		return err
	})
}

// runIndexer runs an indexer in a process whose other parts take about so many bytes.
func runIndexer(ctx context.Context, cfg indexer.Config, beside int64, t telemetry.Config, log *natsFlags) error {
	if err := errors.Join(t.Validate(), cfg.Validate(), log.check()); err != nil {
		return &cli.UsageError{Err: err}
	}
	return withTelemetry(ctx, t, "indexer", func(tel *telemetry.Telemetry) error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		conn, err := log.connect(ctx, "indexer", tel.Log)
		if err != nil {
			return err
		}
		defer conn.Close()
		service, err := indexer.New(cfg, conn, tel)
		if err != nil {
			return err
		}
		limitMemory(ctx, cfg, beside, service.WatchMemory, tel.Log)
		return service.Run(ctx)
	})
}

func newServeReflector() *cobra.Command {
	var s serving
	var r reflecting
	var log natsFlags
	var encryption encryptionFlags
	var k cli.KubeFlags
	cmd := &cobra.Command{
		Use:   "reflector",
		Short: "Mirror collections of an API server into the log",
		Long: `List and watch collections of a Kubernetes API server and append what changes to their
logs in NATS. Of several reflectors of one cluster one leads each collection; the others
follow its log, and one takes over within a second or so when it dies, without a list. A
collection that cannot be listed does not hold the others back.

Several clusters are mirrored by one process when --cluster is repeated; credentials, token
files, plugins, TLS and proxies come from their kubeconfigs, as kubectl takes them. One that
cannot be reached holds no other back. --resources without a cluster are those of each.

A resource has one form in a cluster. For a second one, such as the pods of one application,
name the cluster twice; it is then listed and watched twice:

  --cluster prod=$HOME/.kube/config#prod --cluster prod-web=$HOME/.kube/config#prod
  --resources '{cluster: prod, resource: pods, metadata_only: true}'
  --resources '{cluster: prod-web, resource: pods, label_selector: app=web}'

With metadata_only the payloads are PartialObjectMetadata: no spec, no status, and indexes of
them stay empty. What stands in --resources is fixed. More is added with the same words, for
all reflectors of the log and permanently, by "deltaplane reflection add". In a --config file:

  resources:
  - nodes
  - {resource: pods, drop_fields: [status.conditions]}`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			policy, err := encryption.policy()
			err = errors.Join(err, r.encrypted(policy), s.security.apply(&r.config.RPC, &r.config.Admin, &r.config.Access), r.read(&k), r.config.Validate(), s.telemetry.Validate(), log.check())
			if err != nil {
				return &cli.UsageError{Err: err}
			}
			log.encrypt(policy)
			client, err := k.Load()
			if err != nil {
				return err
			}
			s.shows(map[string]string{"nats": log.security.TLS.CertFile})
			return runReflector(cmd.Context(), r.config, s.telemetry, &log, client)
		},
	}
	s.register(cmd.Flags(), &r.config.RPC, &r.config.Admin, cli.DefaultReflectorAddr, "127.0.0.1:7453")
	log.register(cmd.Flags(), defaultNATSURL)
	encryption.register(cmd.Flags())
	k.Register(cmd.Flags())
	r.register(cmd.Flags())
	registerLimits(cmd.Flags(), "", &r.config.RPC, 0)
	end := cli.Section(cmd.Flags(), cli.SectionMirror)
	cmd.Flags().DurationVar(&r.config.LeaseTTL, "lease-ttl", 0, "how long a leader that does not renew its lease keeps a collection; the same for all replicas (default 3s)")
	cmd.Flags().DurationVar(&r.config.LeasePingTimeout, "lease-ping-timeout", 0, `how long a leader may leave the pings of the others unanswered, as when its process is stopped
(default a third of --lease-ttl)`)
	end()
	cli.ShortHelp(cmd,
		"kubeconfig", "context", "in-cluster", "cluster", "resources", "keep-managed-fields", "mirror-secrets", "nats-url", "nats-creds", "nats-nkey-file",
		"nats-tls-ca", "nats-replicas", "listen", "admin-listen", "serve-tls-cert", "serve-tls-key", "access-policy", "encryption-key-file",
		"insecure", "log-level")
	return cmd
}

func runReflector(ctx context.Context, cfg reflector.Config, t telemetry.Config, log *natsFlags, client *kube.Client) error {
	if err := errors.Join(t.Validate(), cfg.Validate(), log.check()); err != nil {
		return &cli.UsageError{Err: err}
	}
	return withTelemetry(ctx, t, "reflector", func(tel *telemetry.Telemetry) error {
		conn, err := log.connect(ctx, "reflector", tel.Log)
		if err != nil {
			return err
		}
		defer conn.Close()
		service, err := reflector.New(cfg, conn, client, tel)
		if err != nil {
			return err
		}
		return service.Run(ctx)
	})
}

func newServeDevcluster() *cobra.Command {
	var cfg devcluster.Config
	var tolerations taint.Defaults
	var t telemetry.Config
	cmd := &cobra.Command{
		Use:   "devcluster",
		Short: "Serve a small Kubernetes API server, for trying things",
		Long: `Serve a small Kubernetes API server that binds pods to nodes and collects what is owned by
nothing any more. Its nodes are run by "deltaplane serve node --simulated-nodes".`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.DefaultTolerations = &tolerations
			return withTelemetry(cmd.Context(), t, "devcluster", func(tel *telemetry.Telemetry) error {
				cluster, err := devcluster.New(cfg, tel.Log)
				if err != nil {
					return err
				}
				return cluster.Run(cmd.Context())
			})
		},
	}
	registerTelemetry(cmd.Flags(), &t, "info")
	end := cli.Section(cmd.Flags(), cli.SectionAddresses)
	cmd.Flags().StringVar(&cfg.Listen, "listen", "127.0.0.1:7448", "`address` of the API")
	end()
	end = cli.Section(cmd.Flags(), cli.SectionSecurity)
	cmd.Flags().StringVar(&cfg.TLS.CertFile, "serve-tls-cert", "", "PEM `file` of the server's certificate, read again when it changes")
	cmd.Flags().StringVar(&cfg.TLS.KeyFile, "serve-tls-key", "", "PEM `file` of the server's key")
	cmd.Flags().StringVar(&cfg.TLS.CAFile, "serve-tls-client-ca", "", "PEM `file` of the authorities whose client certificates are required; who shows one may do everything")
	cmd.Flags().BoolVar(&cfg.Insecure, "insecure", false, "permit listening beyond loopback without TLS and client certificates")
	end()
	registerTolerations(cmd.Flags(), &tolerations)
	end = cli.Section(cmd.Flags(), cli.SectionRun)
	cmd.Flags().StringVar(&cfg.DataDir, "data-dir", "", "`folder` that keeps the cluster's state (default: memory only)")
	end()
	return cmd
}
