package serve

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/explain"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/internal/telemetry/recent"
	"github.com/deltaplane/deltaplane/services/console"
)

// consoleFlags are the flags of the console.
type consoleFlags struct {
	config    console.Config
	dial      rpc.DialConfig
	addresses cli.DialFlags
	// kept are the traces that are shown; nil for none.
	kept *recent.Store
}

func (c *consoleFlags) register(flags *pflag.FlagSet, prefix string) {
	end := cli.Section(flags, cli.SectionAddresses)
	flags.StringVar(&c.config.Listen, prefix+"listen", console.DefaultListen, "`address` of the console's pages"+of(prefix))
	flags.StringVar(&c.config.Admin.Listen, prefix+"admin-listen", "127.0.0.1:7457", "`address` of /metrics, /healthz and /readyz"+of(prefix)+"; off for none")
	end()
	end = cli.Section(flags, cli.SectionSecurity)
	flags.StringSliceVar(&c.config.Hosts, "console-hosts", nil, "`names` by which browsers may call the console, beside IP addresses and localhost")
	end()
}

func newServeConsole() *cobra.Command {
	var c consoleFlags
	var t telemetry.Config
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Serve pages that show the pipeline live",
		Long: `Serve the console: pages that show the flow, collections, queues, keys, nodes and traces live, and
that retry, move and delete keys and pause queues, on one HTTP port.

A caller's bearer token goes with everything that its page asks for, so callers see and do what
the services let them; without a token what the services let everybody do who reaches them. The
console has no rights of its own to give away: --tls-cert only lets it connect, and then, or beyond
loopback, a service must go by callers' tokens (--access-policy, --access-cluster or
--auth-token-file of its own) or it is not called.

Names by which browsers call the console must be given by --console-hosts.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			t.Certificates = map[string]string{"server": c.config.TLS.CertFile, "admin": c.config.Admin.TLS.CertFile, "client": c.dial.TLS.CertFile}
			return runConsole(cmd.Context(), &c, t)
		},
	}
	flags := cmd.Flags()
	c.register(flags, "")
	end := cli.Section(flags, cli.SectionCalls)
	flags.StringVar(&c.addresses.Index, "index-url", cli.DefaultIndexAddr, "`address` of the index service, host:port or a gRPC target")
	flags.StringVar(&c.addresses.Queue, "queue-url", cli.DefaultQueueAddr, "`address` of the queue service")
	flags.StringVar(&c.addresses.Reflector, "reflector-url", cli.DefaultReflectorAddr, "`address` of the reflector service")
	flags.BoolVar(&c.dial.UseTLS, "tls", false, "call services over TLS")
	flags.StringVar(&c.dial.TLS.CAFile, "tls-ca", "", "PEM `file` of the authorities that sign the services' certificates")
	flags.StringVar(&c.dial.TLS.CertFile, "tls-cert", "", "PEM `file` of this client's certificate")
	flags.StringVar(&c.dial.TLS.KeyFile, "tls-key", "", "PEM `file` of this client's key")
	end()
	end = cli.Section(flags, cli.SectionSecurity)
	flags.StringVar(&c.config.TLS.CertFile, "serve-tls-cert", "", "PEM `file` of the server's certificate, read again when it changes")
	flags.StringVar(&c.config.TLS.KeyFile, "serve-tls-key", "", "PEM `file` of the server's key")
	flags.BoolVar(&c.config.Insecure, "insecure", false, "permit listening beyond loopback without TLS, callers that no service asks who they are, and to send tokens in plain text")
	end()
	registerAdmin(flags, &c.config.Admin)
	registerTelemetry(flags, &t, "info")
	cli.ShortHelp(cmd,
		"index-url", "queue-url", "reflector-url", "tls", "tls-ca", "tls-cert", "tls-key", "listen", "admin-listen", "serve-tls-cert", "serve-tls-key",
		"console-hosts", "insecure", "log-level")
	return cmd
}

// url is where the console serves.
func (c *consoleFlags) url() string {
	if c.config.TLS.CertFile != "" {
		return "https://" + c.config.Listen
	}
	return "http://" + c.config.Listen
}

// connect connects to the services, with a certificate of the console's at most.
func (c *consoleFlags) connect(tel *telemetry.Telemetry) (deps console.Deps, done func(), err error) {
	dial := c.dial
	dial.TokenFile, dial.Tracer = "", tel.Tracer
	var all []func()
	done = func() {
		for _, one := range all {
			one()
		}
	}
	for _, to := range []struct {
		part    *explain.Part
		address string
	}{{&deps.Reflector, c.addresses.Reflector}, {&deps.Index, c.addresses.Index}, {&deps.Queue, c.addresses.Queue}} {
		conn, err := cli.Connect(to.address, dial)
		if err != nil {
			done()
			return deps, nil, err
		}
		all = append(all, func() { _ = conn.Close() })
		*to.part = explain.Part{Address: to.address, Conn: conn}
	}
	return deps, done, nil
}

// check reports what is wrong with the settings.
func (c *consoleFlags) check() error {
	errs := []error{c.config.Validate()}
	if c.dial.UseTLS || c.dial.TLS != (rpc.TLSConfig{}) || c.config.Insecure {
		return errors.Join(errs...)
	}
	for _, address := range []string{c.addresses.Reflector, c.addresses.Index, c.addresses.Queue} {
		if !rpc.Loopback(address) {
			errs = append(errs, fmt.Errorf("address %q: callers' tokens would travel in plain text: use --tls, or permit it by --insecure", address))
		}
	}
	return errors.Join(errs...)
}

func runConsole(ctx context.Context, c *consoleFlags, t telemetry.Config) error {
	if err := errors.Join(t.Validate(), c.check()); err != nil {
		return &cli.UsageError{Err: err}
	}
	return withTelemetry(ctx, t, "console", func(tel *telemetry.Telemetry) error {
		deps, done, err := c.connect(tel)
		if err != nil {
			return err
		}
		defer done()
		if c.kept != nil {
			deps.Traces = keptTraces{c.kept}
		}
		cfg := c.config
		cfg.Version, cfg.OwnRights = cli.BuildVersion(), c.dial.TLS.CertFile != ""
		service, err := console.New(cfg, deps, tel)
		if err != nil {
			return err
		}
		return service.Run(ctx)
	})
}
