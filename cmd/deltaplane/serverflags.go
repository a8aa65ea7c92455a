package main

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

// registerServer adds the flags of one gRPC server. The prefix tells the servers of one process apart; it is empty where
// there is only one.
func registerServer(flags *pflag.FlagSet, prefix string, c *rpc.ServerConfig, admin *telemetry.AdminConfig, listen, adminListen string) {
	flags.StringVar(&c.Listen, prefix+"listen", listen, "`address` gRPC is served on"+of(prefix))
	flags.StringVar(&admin.Listen, prefix+"admin-listen", adminListen, "`address` of /metrics, /healthz, /readyz and /debug/pprof"+of(prefix)+"; off for none")
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
}

func (s *security) register(flags *pflag.FlagSet) {
	flags.StringVar(&s.tls.CertFile, "serve-tls-cert", "", "PEM `file` of the server's certificate, read again when it changes")
	flags.StringVar(&s.tls.KeyFile, "serve-tls-key", "", "PEM `file` of the server's key")
	flags.StringVar(&s.tls.CAFile, "serve-tls-client-ca", "", "PEM `file` of the authorities whose client certificates are required")
	flags.StringVar(&s.auth.Mode, "auth", "", "who may call, a `mode`: allow-all or tokens (default: tokens when --auth-token-file is given)")
	flags.StringVar(&s.auth.TokenFile, "auth-token-file", "", "`file` of bearer tokens that may call")
	flags.BoolVar(&s.insecure, "insecure", false, "permit listening beyond loopback without TLS and authentication")
}

func (s *security) apply(c *rpc.ServerConfig, admin *telemetry.AdminConfig) {
	c.TLS, c.Auth, c.Insecure, admin.Insecure = s.tls, s.auth, s.insecure, s.insecure
}
