package serve

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// registerTelemetry adds the flags every long-running command has.
func registerTelemetry(flags *pflag.FlagSet, c *telemetry.Config, level string) {
	flags.StringVar(&c.LogFormat, "log-format", "text", "`format` of the log: text or json")
	flags.StringVar(&c.LogLevel, "log-level", level, "least `level` that is logged: debug, info, warn or error")
	flags.StringVar(&c.OTLPEndpoint, "otlp-endpoint", "", "host:port or URL of an OTLP gRPC `collector` for traces (default: no traces are exported)")
	flags.BoolVar(&c.OTLPInsecure, "otlp-insecure", false, "send traces without TLS")
	flags.Float64Var(&c.TraceRatio, "trace-ratio", 1, "share of new traces that is recorded, 0 to 1")
}

// registerServer adds the flags of one gRPC server. The prefix tells the servers of one process
// apart; it is empty where there is only one.
func registerServer(flags *pflag.FlagSet, prefix string, c *rpc.ServerConfig, admin *telemetry.AdminConfig, listen, adminListen string) {
	flags.StringVar(&c.Listen, prefix+"listen", listen, "`address` gRPC is served on"+of(prefix))
	flags.StringVar(&admin.Listen, prefix+"admin-listen", adminListen, "`address` of /metrics, /healthz and /readyz"+of(prefix)+"; off for none")
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
	insecure bool
	pprof    bool
}

func (s *security) register(flags *pflag.FlagSet) {
	flags.StringVar(&s.tls.CertFile, "serve-tls-cert", "", "PEM `file` of the server's certificate, read again when it changes")
	flags.StringVar(&s.tls.KeyFile, "serve-tls-key", "", "PEM `file` of the server's key")
	flags.StringVar(&s.tls.CAFile, "serve-tls-client-ca", "", "PEM `file` of the authorities whose client certificates are required")
	flags.StringVar(&s.auth.Mode, "auth", "", "who may call, a `mode`: allow-all or tokens (default: tokens when --auth-token-file is given)")
	flags.StringVar(&s.auth.TokenFile, "auth-token-file", "", "`file` of bearer tokens that may call, one \"TOKEN NAME [METHOD...]\" a line, looked at twice a second. A token that is taken out is refused, on open streams too; without a token in it, or without the file, all are: replace it by renaming another one")
	flags.DurationVar(&s.auth.TokenFileGrace, "auth-token-file-grace", 0, "how long the tokens of the last good --auth-token-file are accepted when it cannot be read or understood (default 10m)")
	flags.BoolVar(&s.insecure, "insecure", false, "permit listening beyond loopback without TLS and authentication")
	registerPprof(flags, &s.pprof)
}

// registerPprof adds the flag of what shows the inside of a process to anyone who can reach its
// admin port.
func registerPprof(flags *pflag.FlagSet, on *bool) {
	flags.BoolVar(on, "pprof", false, "serve /debug/pprof on the admin ports, without the command line")
}

func (s *security) apply(c *rpc.ServerConfig, admin *telemetry.AdminConfig) {
	c.TLS, c.Auth, c.Insecure, admin.Insecure, admin.Pprof = s.tls, s.auth, s.insecure, s.insecure, s.pprof
}
