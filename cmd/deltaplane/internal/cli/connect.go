package cli

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// The addresses services have unless told otherwise.
const (
	DefaultIndexAddr     = "127.0.0.1:7441"
	DefaultQueueAddr     = "127.0.0.1:7442"
	DefaultReflectorAddr = "127.0.0.1:7443"
	defaultAPIURL        = "http://127.0.0.1:7448"
)

// DialFlags are the flags of commands that call services.
type DialFlags struct {
	Index     string
	Queue     string
	Reflector string
	Timeout   time.Duration
	Config    rpc.DialConfig
}

// Register adds the flags.
func (d *DialFlags) Register(flags *pflag.FlagSet) {
	defer Section(flags, SectionCalls)()
	flags.StringVar(&d.Index, "index-url", DefaultIndexAddr, "`address` of the index service, host:port or a gRPC target")
	flags.StringVar(&d.Queue, "queue-url", DefaultQueueAddr, "`address` of the queue service")
	flags.StringVar(&d.Reflector, "reflector-url", DefaultReflectorAddr, "`address` of the reflector service")
	flags.DurationVar(&d.Timeout, "timeout", 10*time.Second, "how long to wait for an answer")
	RegisterDial(flags, &d.Config)
}

// RegisterDial adds the flags for TLS and authentication of outgoing calls.
func RegisterDial(flags *pflag.FlagSet, c *rpc.DialConfig) {
	defer Section(flags, SectionCalls)()
	flags.BoolVar(&c.UseTLS, "tls", false, "call services over TLS")
	flags.StringVar(&c.TLS.CAFile, "tls-ca", "", "PEM `file` of the authorities that sign the services' certificates")
	flags.StringVar(&c.TLS.CertFile, "tls-cert", "", "PEM `file` of this client's certificate")
	flags.StringVar(&c.TLS.KeyFile, "tls-key", "", "PEM `file` of this client's key")
	flags.StringVar(&c.TokenFile, "token-file", "", "`file` with the bearer token to present")
}

// Dial connects a command to a service; calls that do not reach it say what may be wrong with the
// address.
func Dial(target string, c rpc.DialConfig) (*CalledConn, error) {
	conn, err := Connect(target, c)
	if err != nil {
		return nil, err
	}
	return &CalledConn{ClientConn: conn, target: target, config: c}, nil
}

// Connect connects one service to another, for which to be away is ordinary.
func Connect(target string, c rpc.DialConfig) (*grpc.ClientConn, error) {
	if target == "" || strings.ContainsAny(target, " \t\n") {
		return nil, &UsageError{fmt.Errorf("address %q: want host:port, or a gRPC target such as dns:///host:port", target)}
	}
	for flag, file := range map[string]string{"--token-file": c.TokenFile, "--tls-ca": c.TLS.CAFile, "--tls-cert": c.TLS.CertFile, "--tls-key": c.TLS.KeyFile} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			return nil, &UsageError{fmt.Errorf("%s: %w", flag, err)}
		}
	}
	conn, err := rpc.Dial(target, c)
	if err != nil {
		return nil, &UsageError{fmt.Errorf("address %q: %w", target, err)}
	}
	return conn, nil
}
