package auth

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
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
from a plugin; client certificates it cannot pass on.

With --user none, for a gateway before a dev cluster, nothing is read and nobody is named.`,
		Example: `  deltaplane kubeconfig -o gateway.kubeconfig
  deltaplane kubeconfig --server https://deltaplane.example.com:7449 --certificate-authority ca.crt`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			made, err := k.make()
			if err != nil {
				return err
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
	flags.StringVar(&k.server, "server", "https://127.0.0.1:7449", "`URL` of the gateway")
	flags.StringVar(&k.ca, "certificate-authority", "", "PEM `file` of the authority that the gateway's certificate is of (default: that of \"deltaplane up\", where there is one)")
	flags.StringVar(&k.name, "user", "", "\"none\" to name no user")
	flags.StringVarP(&k.output, "output", "o", "", "`file` to write (default: standard output)")
	return cmd
}

func (k *kubeconfig) make() ([]byte, error) {
	u, err := url.Parse(k.server)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, &cli.UsageError{Err: fmt.Errorf("--server %q: want https://host:port", k.server)}
	}
	if k.name != "" && k.name != "none" {
		return nil, &cli.UsageError{Err: fmt.Errorf("--user %q: want none", k.name)}
	}
	out, err := k.read()
	if err != nil {
		return nil, err
	}
	if u.Scheme == "http" && k.name == "" {
		return nil, &cli.UsageError{Err: fmt.Errorf("--server %q: clients of Kubernetes send no token without TLS: want https, or --user none", k.server)}
	}
	cluster := &clientcmdapi.Cluster{Server: k.server}
	if u.Scheme == "https" {
		if cluster.CertificateAuthorityData, err = k.authority(); err != nil {
			return nil, err
		}
	}
	context := out.Contexts[out.CurrentContext]
	context.Cluster = "deltaplane"
	out.Clusters = map[string]*clientcmdapi.Cluster{context.Cluster: cluster}
	made, err := clientcmd.Write(*out)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return made, nil
}

// read is the kubeconfig with the one context, and its user.
func (k *kubeconfig) read() (*clientcmdapi.Config, error) {
	if k.name == "none" {
		out := clientcmdapi.NewConfig()
		out.CurrentContext = "deltaplane"
		out.Contexts[out.CurrentContext] = &clientcmdapi.Context{}
		return out, nil
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.source
	out, err := rules.Load()
	if err != nil {
		return nil, &cli.UsageError{Err: fmt.Errorf("--kubeconfig: %w", err)}
	}
	if k.context != "" {
		out.CurrentContext = k.context
	}
	if out.Contexts[out.CurrentContext] == nil {
		return nil, &cli.UsageError{Err: fmt.Errorf("--context: the kubeconfig has no context %q", out.CurrentContext)}
	}
	if err := errors.Join(clientcmdapi.MinifyConfig(out), clientcmd.ResolveLocalPaths(out)); err != nil {
		return nil, &cli.UsageError{Err: fmt.Errorf("--kubeconfig: %w", err)}
	}
	for name, user := range out.AuthInfos {
		if user.Token == "" && user.TokenFile == "" && user.Exec == nil && user.AuthProvider == nil {
			return nil, &cli.UsageError{Err: fmt.Errorf("--kubeconfig: user %q shows no bearer token, and the gateway can pass on nothing else", name)}
		}
		user.ClientCertificate, user.ClientCertificateData, user.ClientKey, user.ClientKeyData = "", nil, "", nil
	}
	return out, nil
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
