package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// The addresses services have unless told otherwise.
const (
	defaultIndexAddr     = "127.0.0.1:7441"
	defaultQueueAddr     = "127.0.0.1:7442"
	defaultReflectorAddr = "127.0.0.1:7443"
	defaultAPIURL        = "http://127.0.0.1:7448"
)

// dialFlags are the flags of commands that call services.
type dialFlags struct {
	index     string
	queue     string
	reflector string
	timeout   time.Duration
	config    rpc.DialConfig
}

func (d *dialFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&d.index, "index-url", defaultIndexAddr, "`address` of the index service, host:port or a gRPC target")
	flags.StringVar(&d.queue, "queue-url", defaultQueueAddr, "`address` of the queue service")
	flags.StringVar(&d.reflector, "reflector-url", defaultReflectorAddr, "`address` of the reflector service")
	flags.DurationVar(&d.timeout, "timeout", 10*time.Second, "how long to wait for an answer")
	registerDial(flags, &d.config)
}

// registerDial adds the flags for TLS and authentication of outgoing calls.
func registerDial(flags *pflag.FlagSet, c *rpc.DialConfig) {
	flags.BoolVar(&c.UseTLS, "tls", false, "call services over TLS")
	flags.StringVar(&c.TLS.CAFile, "tls-ca", "", "PEM `file` of the authorities that sign the services' certificates")
	flags.StringVar(&c.TLS.CertFile, "tls-cert", "", "PEM `file` of this client's certificate")
	flags.StringVar(&c.TLS.KeyFile, "tls-key", "", "PEM `file` of this client's key")
	flags.StringVar(&c.TokenFile, "token-file", "", "`file` with the bearer token to present")
}

// dial connects a command to a service; calls that do not reach it say what may be wrong with the address.
func dial(target string, c rpc.DialConfig) (*calledConn, error) {
	conn, err := connect(target, c)
	if err != nil {
		return nil, err
	}
	return &calledConn{ClientConn: conn, target: target, config: c}, nil
}

// connect connects one service to another, for which to be away is ordinary.
func connect(target string, c rpc.DialConfig) (*grpc.ClientConn, error) {
	conn, err := rpc.Dial(target, c)
	if err != nil {
		return nil, &usageError{fmt.Errorf("address %q: %w", target, err)}
	}
	return conn, nil
}
