package serve

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/trust"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/gateway"
)

// gatewayFlags are the flags of the gateway.
type gatewayFlags struct {
	config     gateway.Config
	index      string
	dial       rpc.DialConfig
	frontProxy kube.Credentials
}

func (g *gatewayFlags) register(flags *pflag.FlagSet, prefix string) {
	defer cli.Section(flags, cli.SectionGateway)()
	end := cli.Section(flags, cli.SectionAddresses)
	flags.StringVar(&g.config.Listen, prefix+"listen", gateway.DefaultListen, "`address` of the Kubernetes API"+of(prefix))
	flags.StringVar(&g.config.Admin.Listen, prefix+"admin-listen", "127.0.0.1:7456", "`address` of /metrics, /healthz and /readyz"+of(prefix)+"; off for none")
	end()
	flags.DurationVar(&g.config.MaxAge, "max-age", 10*time.Second, "how long the state may not have been the latest of the index before reads go to the API server")
	flags.BoolVar(&g.config.ServeStale, "serve-stale", false, "while the API server cannot be reached, answer reads with the last known state and a Warning header that tells its age, to those who were permitted the same within the last hour")
	flags.BoolVar(&g.config.IndexSelectors, "index-selectors", false, "select by fields that have a declared index and that the API server does not know, which refuses them otherwise")
	flags.BoolVar(&g.config.WithoutManagedFields, "without-managed-fields", false, "also answer from collections whose objects lack metadata.managedFields; otherwise mirror them with --keep-managed-fields")
}

func newServeGateway() *cobra.Command {
	var g gatewayFlags
	var t telemetry.Config
	var k cli.KubeFlags
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Serve the Kubernetes API: reads from the index, all else from the API server",
		Long: `Serve the Kubernetes API of one cluster. LIST and WATCH of mirrored resources are answered from
the index, everything else goes to the API server as it came. A client joins by the server
line of its kubeconfig, which "deltaplane kubeconfig" writes: the API server then has one
watch of each resource, however many clients there are.

Callers show the API server's own tokens. The cluster says whose they are and what they may
read, by TokenReview and SubjectAccessReview: the gateway's own credentials need the
ClusterRoles deltaplane-authority and deltaplane-gateway of deploy/rbac.yaml. Who is not known, or may not, is refused by the API server itself.
Client certificates end here. With --client-certificates impersonate their owners are named to the
API server by impersonation, which the gateway's own credentials must be permitted (the ClusterRole
deltaplane-gateway-impersonator); with front-proxy by the headers of an authenticating proxy.
With --api-url everybody may read everything.

Collections that lack something are not answered from: mirror them without selectors and
with --keep-managed-fields, or permit that to be missing by --without-managed-fields.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := k.Load()
			if err != nil {
				return err
			}
			t.Certificates = map[string]string{"server": g.config.TLS.CertFile, "admin": g.config.Admin.TLS.CertFile, "client": g.dial.TLS.CertFile}
			return runGateway(cmd.Context(), &g, t, client, k.Source())
		},
	}
	flags := cmd.Flags()
	g.register(flags, "")
	registerClusterName(flags, &g.config.Cluster)
	registerIndexURL(flags, &g.index)
	end := cli.Section(flags, cli.SectionSecurity)
	flags.StringVar(&g.config.TLS.CertFile, "serve-tls-cert", "", "PEM `file` of the server's certificate, read again when it changes")
	flags.StringVar(&g.config.TLS.KeyFile, "serve-tls-key", "", "PEM `file` of the server's key")
	flags.StringVar((*string)(&g.config.ClientCertificates), "client-certificates", "", "take client certificates of the cluster, and name their owners to the API server by `impersonate` or front-proxy")
	flags.StringVar(&g.config.ClientCA, "client-ca", "", "PEM `file` of the authorities whose client certificates count (default: those of the cluster, by the ConfigMap kube-system/extension-apiserver-authentication)")
	flags.StringVar(&g.frontProxy.CertFile, "front-proxy-cert", "", "PEM `file` of the certificate that the API server knows an authenticating proxy by")
	flags.StringVar(&g.frontProxy.KeyFile, "front-proxy-key", "", "PEM `file` of its key")
	flags.BoolVar(&g.config.Insecure, "insecure", false, "permit listening beyond loopback without TLS")
	end()
	registerAdmin(flags, &g.config.Admin)
	cli.RegisterDial(flags, &g.dial)
	k.Register(flags)
	registerTelemetry(flags, &t, "info")
	cli.ShortHelp(cmd,
		"kubeconfig", "context", "in-cluster", "api-url", "cluster", "index-url", "tls-ca", "tls-cert", "tls-key", "token-file", "max-age", "serve-stale",
		"listen", "admin-listen", "serve-tls-cert", "serve-tls-key", "client-certificates", "client-ca", "insecure", "log-level")
	return cmd
}

// certify makes a certificate for the gateway of a cluster that asks who calls, unless it has one:
// clients of Kubernetes show no credentials without TLS. Those with certificates are impersonated,
// as far as the user of the kubeconfig may.
func (u *upFlags) certify() error {
	tls := &u.gateway.config.TLS
	if !u.runs("gateway") || u.kube.Source().URL != "" {
		return nil
	}
	u.gateway.config.ClientCertificates = gateway.Impersonate
	if tls.CertFile != "" {
		return nil
	}
	files, err := trust.NewLocal(filepath.Join(u.dataDir, "gateway"), "deltaplane-gateway", "localhost", "127.0.0.1", "::1")
	if err != nil {
		return fmt.Errorf("a certificate for the gateway: %w", err)
	}
	tls.CertFile, tls.KeyFile = files.Cert, files.Key
	return nil
}

// url is where the gateway serves.
func (g *gatewayFlags) url() string {
	if g.config.TLS.CertFile != "" {
		return "https://" + g.config.Listen
	}
	return "http://" + g.config.Listen
}

// vouching is the API server with the credentials that go with requests of those who show a client
// certificate; nil where none are taken.
func (g *gatewayFlags) vouching(source kube.Config) (*kube.Upstream, error) {
	mode := g.config.ClientCertificates
	switch {
	case mode == gateway.FrontProxy && (g.frontProxy.CertFile == "" || g.frontProxy.KeyFile == ""):
		return nil, errors.New("--client-certificates front-proxy needs --front-proxy-cert and --front-proxy-key")
	case mode == gateway.FrontProxy:
		return kube.LoadUpstream(source, g.frontProxy)
	case g.frontProxy != (kube.Credentials{}):
		return nil, errors.New("--front-proxy-cert and --front-proxy-key are for --client-certificates front-proxy")
	case mode == gateway.Impersonate:
		return kube.LoadUpstream(source, kube.Credentials{Own: true})
	}
	return nil, nil //nolint:nilnil // nobody's
}

// runGateway serves the API of a cluster, which the client reaches and source says how to reach.
func runGateway(ctx context.Context, g *gatewayFlags, t telemetry.Config, kc *kube.Client, source kube.Config) error {
	cfg := g.config
	cfg.AllowAll = source.URL != ""
	if err := errors.Join(t.Validate(), cfg.Validate()); err != nil {
		return &cli.UsageError{Err: err}
	}
	upstream, err := kube.LoadUpstream(source, kube.Credentials{})
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	defer upstream.Close()
	vouching, err := g.vouching(source)
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	if vouching != nil {
		defer vouching.Close()
	}
	return withTelemetry(ctx, t, "gateway", func(tel *telemetry.Telemetry) error {
		traced := g.dial
		traced.Tracer = tel.Tracer
		conn, err := cli.Connect(g.index, traced)
		if err != nil {
			return err
		}
		defer conn.Close()
		service, err := gateway.New(cfg, gateway.Deps{Index: client.NewIndex(conn), Kube: kc, Upstream: upstream, Vouching: vouching}, tel)
		if err != nil {
			return err
		}
		return service.Run(ctx)
	})
}
