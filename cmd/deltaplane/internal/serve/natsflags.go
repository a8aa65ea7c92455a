package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/client/deltalog"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/seal"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// natsFlags say where the log is.
type natsFlags struct {
	config   stream.Config
	security stream.Security
}

const defaultNATSURL = "nats://127.0.0.1:4222"

func (n *natsFlags) register(flags *pflag.FlagSet, url string) {
	defer cli.Section(flags, cli.SectionLog)()
	flags.StringVar(&n.config.URL, "nats-url", url, "`URL` of the NATS server, or several separated by commas")
	flags.StringVar(&n.config.Credentials, "nats-creds", "", "NATS credentials `file`")
	flags.StringVar(&n.security.NKeyFile, "nats-nkey-file", "", "`file` with the seed of the nkey NATS knows this service by")
	flags.StringVar(&n.security.Username, "nats-username", "", "`user` NATS knows this service as")
	flags.StringVar(&n.security.PasswordFile, "nats-password-file", "", "`file` with that user's password, read again at each connection")
	flags.StringVar(&n.security.TLS.CAFile, "nats-tls-ca", "", "PEM `file` of the authorities that sign the certificate of NATS; it implies TLS (default: the system's)")
	flags.StringVar(&n.security.TLS.CertFile, "nats-tls-cert", "", "PEM `file` of the certificate shown to NATS")
	flags.StringVar(&n.security.TLS.KeyFile, "nats-tls-key", "", "PEM `file` of its key")
	flags.IntVar(&n.config.Replicas, "nats-replicas", 1, "replicas of each log, made by the reflector")
	flags.DurationVar(&n.config.TombstoneTTL, "tombstone-ttl", time.Hour, "how long deletions stay in the log")
}

// check reports faults that trying again cannot heal. It names no URL: that may hold a password.
func (n *natsFlags) check() error {
	for i, one := range strings.Split(n.config.URL, ",") {
		if one = strings.TrimSpace(one); !strings.Contains(one, "://") {
			one = "nats://" + one
		}
		u, err := url.Parse(one)
		if err != nil || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			return fmt.Errorf("--nats-url: address %d is not nats://host:port (or tls, ws, wss)", i+1)
		}
	}
	var errs []error
	if n.config.Replicas < 1 || n.config.Replicas > 5 {
		errs = append(errs, fmt.Errorf("--nats-replicas: %d: want 1 to 5", n.config.Replicas))
	}
	if n.config.TombstoneTTL < time.Second {
		errs = append(errs, fmt.Errorf("--tombstone-ttl: %v: want at least 1s", n.config.TombstoneTTL))
	}
	if n.config.Credentials != "" {
		if _, err := os.Stat(n.config.Credentials); err != nil {
			errs = append(errs, fmt.Errorf("--nats-creds: %w", err))
		}
	}
	ways := 0
	for _, way := range []string{n.config.Credentials, n.security.NKeyFile, n.security.Username} {
		if way != "" {
			ways++
		}
	}
	if ways > 1 {
		errs = append(errs, errors.New("--nats-creds, --nats-nkey-file and --nats-username exclude one another"))
	}
	if (n.security.Username == "") != (n.security.PasswordFile == "") {
		errs = append(errs, errors.New("--nats-username and --nats-password-file need one another"))
	}
	if certs.Validate(n.security.TLS) != nil {
		errs = append(errs, errors.New("--nats-tls-cert and --nats-tls-key need one another"))
	} else if _, err := n.options(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// options are those of a connection that authenticates this side and checks the other.
func (n *natsFlags) options() ([]stream.Option, error) {
	options, err := n.security.Options()
	if err != nil {
		return nil, fmt.Errorf("--nats: %w", err)
	}
	return slices.Concat(n.config.Options, options), nil
}

// readSecret is what a file of a flag holds, without the space around it.
func readSecret(flag, path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("--%s: %w", flag, err)
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return "", fmt.Errorf("--%s: %s is empty", flag, path)
	}
	return secret, nil
}

// encrypt has the log's payloads encrypted by a policy.
func (n *natsFlags) encrypt(p seal.Policy) { n.config.Encryption = p }

// connect opens the log for one service, which may be away: services start in any order.
func (n *natsFlags) connect(ctx context.Context, service string, log *slog.Logger) (*stream.Conn, error) {
	options, err := n.options()
	if err != nil {
		return nil, err
	}
	c := n.config
	c.Name, c.Log, c.Build, c.Options = "deltaplane-"+service, log, cli.BuildVersion(), options
	c.Retry = true
	conn, err := stream.Connect(ctx, c)
	if err != nil {
		return nil, &cli.UsageError{Err: fmt.Errorf("--nats-url: %w", err)}
	}
	return conn, nil
}

// connectReader opens the log as a controller of anybody's does.
func (n *natsFlags) connectReader(ctx context.Context, service string, log *slog.Logger) (*deltalog.Conn, error) {
	options, err := n.options()
	if err != nil {
		return nil, err
	}
	c := deltalog.Config{
		URL: n.config.URL, Credentials: n.config.Credentials, Options: options, Name: "deltaplane-" + service,
		Replicas: n.config.Replicas, TombstoneTTL: n.config.TombstoneTTL, Retry: true, Log: log,
	}
	conn, err := deltalog.Connect(ctx, c)
	if err != nil {
		return nil, &cli.UsageError{Err: fmt.Errorf("--nats-url: %w", err)}
	}
	return conn, nil
}
