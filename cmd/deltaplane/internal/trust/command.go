package trust

import (
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
)

// NewCerts is the command "certs" and those below it.
func NewCerts() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs COMMAND",
		Short: "Make the certificates and users by which the parts trust each other",
	}
	cmd.AddCommand(newInit())
	cli.Group(cmd)
	return cmd
}

func newInit() *cobra.Command {
	m := maker{}
	var output string
	cmd := &cobra.Command{
		Use:   "init FOLDER",
		Short: "Make what is missing, and renew certificates that end soon",
		Long: `Make, in a folder for each part, what the parts of a deployment trust each other by:

  authority/    the authority and its key: keep it apart, no part needs it
  PART/         ca.crt, tls.crt, tls.key, and what else the part needs:
                nats.nk         key of its NATS user (reflector, indexer, controllers)
                policy.yaml     what its callers may do (reflector, indexer, queue)
                tokens          callers that show a token, for --auth-token-file (reflector,
                                indexer, queue): you, by admin/token, as in the console, and
                                whom you add
                kubeconfig      how it calls the API server (reflector, controllers, gateway, node,
                                admin)
                redis-password  password of the Redis user "deltaplane" (queue)
                users.conf      accounts of nats-server, to be included in its configuration (nats)
                users.acl       the file for --aclfile of redis-server (redis)

The parts are nats, redis, devcluster, reflector, indexer, queue, controllers, gateway,
admission (the webhook of the controllers), console and node; admin/ is yours: --tls-ca,
--tls-cert and --tls-key of every command. Give each part its own folder and no other.
deploy/compose.secure.yaml runs with all of it. A policy.yaml of before gateways had names has
to let the group deltaplane:gateways read, as the groups beside it.

It may be run again at any time: keys, passwords and policies stay as they are, and a
certificate is renewed when a third of its lifetime is left or its names have changed. In
tokens it replaces the lines of deltaplane:admin by one with the hash of admin/token and
leaves all others. It writes what follows from other files again whole: ca.crt outside of
authority/, kubeconfig, users.conf, users.acl and the indexer's encryption.keys.

Our services notice changed files by themselves; nats-server needs a reload (SIGHUP),
redis-server a restart. To replace a key, a token or a password delete its file before.`,
		Example: `  deltaplane certs init certs --hosts deltaplane.example.com`,
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			m.dir, m.now = a[0], time.Now()
			if m.lifetime < time.Hour || m.lifetime > authorityLifetime {
				return &cli.UsageError{Err: fmt.Errorf("--lifetime %v: want 1h to %v", m.lifetime, authorityLifetime)}
			}
			if u, err := url.Parse(m.apiURL); err != nil || u.Scheme != "https" || u.Host == "" {
				return &cli.UsageError{Err: fmt.Errorf("--api-url %q: want https://host:port", m.apiURL)}
			}
			if err := m.run(); err != nil {
				return fmt.Errorf("certs: %w", err)
			}
			return m.print(cmd, output)
		},
	}
	cmd.Flags().StringSliceVar(&m.hosts, "hosts", nil, "further `names` and IP addresses under which the servers are called, for all of their certificates")
	cmd.Flags().StringVar(&m.apiURL, "api-url", "https://devcluster:7448", "`URL` of the API server that kubeconfigs name, whose certificate the authority signed")
	cmd.Flags().Lookup("api-url").Annotations = map[string][]string{cli.NoEnvironment: {}}
	cmd.Flags().DurationVar(&m.lifetime, "lifetime", 365*24*time.Hour, "how long certificates are valid")
	show.RegisterOutput(cmd, &output)
	return cmd
}

func (m *maker) print(cmd *cobra.Command, output string) error {
	if output == "json" {
		return show.PrintJSON(cmd.OutOrStdout(), map[string]any{"files": m.all})
	}
	rows := [][]string{{"FILE", "STATE", "VALID UNTIL", "WHAT"}}
	for _, f := range m.all {
		until := "-"
		if f.Until != nil {
			until = f.Until.UTC().Format(time.DateOnly)
		}
		rows = append(rows, []string{f.Path, f.State, until, f.What})
	}
	return show.Table(cmd.OutOrStdout(), rows)
}
