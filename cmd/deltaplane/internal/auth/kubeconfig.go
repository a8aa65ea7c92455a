package auth

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/gateway"
)

// kubeconfig is the command "kubeconfig".
type kubeconfig struct {
	source, context string
	server, ca      string
	name            string
	output          string
}

// NewKubeconfig is the command "kubeconfig".
func NewKubeconfig() *cobra.Command {
	var k kubeconfig
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Write a kubeconfig that reads through the gateway",
		Long: `Write a kubeconfig whose server is the gateway: that of --kubeconfig (or the one that kubectl
would take) with another server line, and the authority that the gateway's certificate is of.
Users and namespaces stay. The gateway takes bearer tokens, be they written down, in a file or
from a plugin, and client certificates where it has --client-certificates, as that of
"deltaplane up" has.

With --user none, for a gateway before a dev cluster, nothing is read and nobody is named.`,
		Example: `  deltaplane kubeconfig -o gateway.kubeconfig
  deltaplane kubeconfig --server https://deltaplane.example.com:7449 --certificate-authority ca.crt`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			made, certificate, err := k.make()
			if err != nil {
				return err
			}
			if certificate {
				fmt.Fprintln(cmd.ErrOrStderr(), "The user shows a client certificate: the gateway must have --client-certificates, as that of \"deltaplane up\" has.")
			}
			if k.output == "" || k.output == "-" {
				_, err = cmd.OutOrStdout().Write(made)
				return err
			}
			return os.WriteFile(k.output, made, 0o600)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&k.source, "kubeconfig", "", "kubeconfig `file` to take the user from (default: the one that kubectl would take)")
	flags.StringVar(&k.context, "context", "", "`name` of its context (default: its current one)")
	flags.StringVar(&k.server, "server", "https://"+gateway.DefaultListen, "`URL` of the gateway")
	flags.StringVar(&k.ca, "certificate-authority", "", "PEM `file` of the authority that the gateway's certificate is of (default: that of \"deltaplane up\", where there is one)")
	flags.StringVar(&k.name, "user", "", "\"none\" to name no user")
	flags.StringVarP(&k.output, "output", "o", "", "`file` to write (default: standard output)")
	return cmd
}

func (k *kubeconfig) make() (made []byte, certificate bool, err error) {
	u, err := url.Parse(k.server)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, false, &cli.UsageError{Err: fmt.Errorf("--server %q: want https://host:port", k.server)}
	}
	if k.name != "" && k.name != "none" {
		return nil, false, &cli.UsageError{Err: fmt.Errorf("--user %q: want none", k.name)}
	}
	if u.Scheme == "http" && k.name == "" {
		return nil, false, &cli.UsageError{Err: fmt.Errorf("--server %q: clients of Kubernetes send no token without TLS: want https, or --user none", k.server)}
	}
	r := kube.Rewrite{Kubeconfig: k.source, Context: k.context, Server: k.server, NoUser: k.name == "none"}
	if u.Scheme == "https" {
		if r.CA, err = k.authority(); err != nil {
			return nil, false, err
		}
	}
	if made, certificate, err = r.Make(); err != nil {
		return nil, false, &cli.UsageError{Err: fmt.Errorf("--kubeconfig: %w", err)}
	}
	return made, certificate, nil
}

// authority is the certificate of the authority; nothing where the host's authorities are meant.
func (k *kubeconfig) authority() ([]byte, error) {
	path := k.ca
	if path == "" {
		dir, err := cli.StateDir()
		if err != nil {
			return nil, nil //nolint:nilerr // there can be no such file
		}
		path = filepath.Join(dir, "gateway", "ca.crt")
		if _, err := os.Stat(path); err != nil {
			return nil, nil //nolint:nilerr // nobody has said that there is one
		}
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, &cli.UsageError{Err: fmt.Errorf("--certificate-authority: %w", err)}
	}
	return pem, nil
}
