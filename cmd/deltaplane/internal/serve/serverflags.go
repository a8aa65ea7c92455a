package serve

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/authority"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// registerTelemetry adds the flags every long-running command has.
func registerTelemetry(flags *pflag.FlagSet, c *telemetry.Config, level string) {
	defer cli.Section(flags, cli.SectionTelemetry)()
	flags.StringVar(&c.LogFormat, "log-format", "text", "`format` of the log: text or json")
	flags.StringVar(&c.LogLevel, "log-level", level, "least `level` that is logged: debug, info, warn or error")
	flags.StringVar(&c.OTLPEndpoint, "otlp-endpoint", "", "host:port or URL of an OTLP gRPC `collector` for traces (default: that of the OTEL_EXPORTER_OTLP_* variables, else none)")
	flags.BoolVar(&c.OTLPInsecure, "otlp-insecure", false, "send traces without TLS")
	flags.Float64Var(&c.TraceRatio, "trace-ratio", 0.01, "share of API events whose traces are recorded, 0 to 1: the reflector decides, for all services; errors are recorded besides")
}

// registerServer adds the flags of one gRPC server. The prefix tells the servers of one process
// apart; it is empty where there is only one.
func registerServer(flags *pflag.FlagSet, prefix string, c *rpc.ServerConfig, admin *telemetry.AdminConfig, listen, adminListen string) {
	defer cli.Section(flags, cli.SectionAddresses)()
	flags.StringVar(&c.Listen, prefix+"listen", listen, "`address` gRPC is served on"+of(prefix))
	flags.StringVar(&admin.Listen, prefix+"admin-listen", adminListen, "`address` of /metrics, /healthz and /readyz"+of(prefix)+"; off for none")
}

// registerAdminListen adds the address of the admin port of a process that serves no gRPC.
func registerAdminListen(flags *pflag.FlagSet, address *string, listen string) {
	defer cli.Section(flags, cli.SectionAddresses)()
	flags.StringVar(address, "admin-listen", listen, "`address` of /metrics, /healthz and /readyz; off for none")
}

// registerInsecureAdmin adds a flag that the services beside it have too.
func registerInsecureAdmin(flags *pflag.FlagSet, insecure *bool) {
	defer cli.Section(flags, cli.SectionSecurity)()
	flags.BoolVar(insecure, "insecure", false, "the same as --admin-insecure")
}

// registerClusterName adds the name of the cluster that a process works for.
func registerClusterName(flags *pflag.FlagSet, name *string) {
	defer cli.Section(flags, cli.SectionCluster)()
	flags.StringVar(name, "cluster", "dev", "`name` of the cluster, the first part of its collections' names")
}

// registerIndexURL adds the address of the index service that a process reads.
func registerIndexURL(flags *pflag.FlagSet, address *string) {
	defer cli.Section(flags, cli.SectionCalls)()
	flags.StringVar(address, "index-url", cli.DefaultIndexAddr, "`address` of the index service, host:port or a gRPC target")
}

func of(prefix string) string {
	if prefix == "" {
		return ""
	}
	return " (" + strings.TrimSuffix(prefix, "-") + ")"
}

// security is what all servers of a process share.
type security struct {
	tls      rpc.TLSConfig
	auth     rpc.AuthConfig
	access   authority.Config
	clusters []string
	insecure bool
	admin    telemetry.AdminConfig // of all, but for the address
}

func (s *security) register(flags *pflag.FlagSet) {
	defer cli.Section(flags, cli.SectionSecurity)()
	flags.StringVar(&s.tls.CertFile, "serve-tls-cert", "", "PEM `file` of the server's certificate, read again when it changes")
	flags.StringVar(&s.tls.KeyFile, "serve-tls-key", "", "PEM `file` of the server's key")
	flags.StringVar(&s.tls.CAFile, "serve-tls-client-ca", "", "PEM `file` of the authorities whose client certificates are required")
	flags.StringVar(&s.auth.Mode, "auth", "", "who may call, a `mode`: allow-all, tokens, or identities: the caller is whom its bearer token or client certificate names (default: identities when --access-policy or --access-cluster is given, else tokens when --auth-token-file is)")
	flags.StringVar(&s.auth.TokenFile, "auth-token-file", "", "`file` of bearer tokens that may call, one \"TOKEN NAME [groups=GROUP,...] [METHOD...]\" a line; TOKEN may be its SHA-256, as sha256:HEX. It is looked at twice a second. A token that is taken out is refused, on open streams too; without a token in it, or without the file, all are: replace it by renaming another one")
	flags.DurationVar(&s.auth.TokenFileGrace, "auth-token-file-grace", 0, "how long the tokens of the last good --auth-token-file are accepted when it cannot be read or understood (default 10m)")
	flags.StringVar(&s.access.PolicyFile, "access-policy", "", "`file` of RBAC manifests (Role, ClusterRole and their bindings) and IdentityMappings that say what callers may do, read again when it changes")
	flags.StringArrayVar(&s.clusters, "access-cluster", nil, `clusters that review callers' tokens and decide about their collections, each as `+"`name=source`"+`, with
a source as of --cluster of the reflector; the first also decides about queues. They need
the rights of the ClusterRole system:auth-delegator, and to watch roles and their bindings`)
	flags.BoolVar(&s.access.ByName, "access-by-name", false, "ask clusters about each object that is got, also where the caller may get all of its namespace: for authorizers that refuse single names")
	flags.StringVar(&s.access.AuditFile, "audit-log", "", "`file` for a line of JSON about each denied call and administrative change (default: standard error)")
	flags.BoolVar(&s.insecure, "insecure", false, "permit listening beyond loopback without TLS and authentication")
	registerAdmin(flags, &s.admin)
}

// registerAdmin adds the flags of admin ports, but for their addresses.
func registerAdmin(flags *pflag.FlagSet, c *telemetry.AdminConfig) {
	defer cli.Section(flags, cli.SectionSecurity)()
	flags.StringVar(&c.TLS.CertFile, "admin-tls-cert", "", "PEM `file` of the admin ports' certificate, read again when it changes")
	flags.StringVar(&c.TLS.KeyFile, "admin-tls-key", "", "PEM `file` of its key")
	flags.StringVar(&c.TLS.CAFile, "admin-tls-client-ca", "", "PEM `file` of the authorities whose client certificates let in; /healthz and the status of /readyz take none")
	flags.StringVar(&c.TokenFile, "admin-token-file", "", "`file` of bearer tokens that let in as well, like --auth-token-file, with paths for methods")
	flags.BoolVar(&c.Insecure, "admin-insecure", false, "permit an admin address beyond loopback without TLS and authentication")
	flags.BoolVar(&c.Pprof, "pprof", false, "serve /debug/pprof on the admin ports, without the command line")
}

// protect gives an admin port what all of a process have.
func protect(port *telemetry.AdminConfig, c telemetry.AdminConfig, insecure bool) {
	c.Listen, c.Insecure = port.Listen, c.Insecure || insecure
	*port = c
}

// open says that everybody who reaches a service may call it.
func (s *security) open() bool {
	return s.tls.CAFile == "" && s.auth.TokenFile == "" && (s.auth.Mode == "" || s.auth.Mode == rpc.AuthAllowAll) &&
		s.access.PolicyFile == "" && len(s.clusters) == 0
}

// certificates are those that the servers show.
func (s *security) certificates() map[string]string {
	return map[string]string{"server": s.tls.CertFile, "admin": s.admin.TLS.CertFile}
}

// secure is apply for a server that shares what decides with another one.
func (s *security) secure(c *rpc.ServerConfig, admin *telemetry.AdminConfig) {
	c.TLS, c.Auth, c.Insecure = s.tls, s.auth, s.insecure
	protect(admin, s.admin, s.insecure)
}

// apply secures a server, and says who decides what its callers may do.
func (s *security) apply(c *rpc.ServerConfig, admin *telemetry.AdminConfig, access *authority.Config) error {
	s.secure(c, admin)
	*access = s.access
	var errs []error
	for _, text := range s.clusters {
		name, source, has := strings.Cut(text, "=")
		if !has || name == "" {
			errs = append(errs, fmt.Errorf("--access-cluster: %q: want name=KUBECONFIG[#CONTEXT], name=in-cluster or name=URL", text))
			continue
		}
		client, err := loadCluster(source)
		if err != nil {
			errs = append(errs, fmt.Errorf("--access-cluster: %s: %w", name, err))
			continue
		}
		access.Clusters = append(access.Clusters, authority.Cluster{Name: name, Kube: client})
	}
	return errors.Join(errs...)
}

func loadCluster(source string) (*kube.Client, error) {
	c, err := clusterSource(source)
	if err != nil {
		return nil, err
	}
	return kube.Load(c)
}
