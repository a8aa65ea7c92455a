package console

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// DefaultListen is the address of a console that names none.
const DefaultListen = "127.0.0.1:7450"

// Config is the settings of a console. Its zero value is one on 127.0.0.1:7450 without TLS.
type Config struct {
	// Listen is the address of the pages; [DefaultListen] when empty.
	Listen string
	// TLS of the pages; none without a CertFile.
	TLS certs.Config
	// Hosts are the names by which browsers may call the console, beside IP addresses and localhost.
	// A name that is not among them is refused: it may be somebody's who points it at this machine.
	Hosts []string
	// Insecure permits an address beyond loopback without TLS, and callers there whom no service
	// asks who they are.
	Insecure bool
	// OwnRights says that the connections to the services show a certificate of the console's. What
	// that permits is no caller's: each service must then say that it goes by the caller's token.
	OwnRights bool
	// Admin is the port of metrics and health.
	Admin telemetry.AdminConfig
	// Version is that of the build, as the pages show it.
	Version string
}

func (c Config) withDefaults() Config {
	c.Listen = cmp.Or(c.Listen, DefaultListen)
	return c
}

// Validate reports every fault together.
func (c Config) Validate() error {
	c = c.withDefaults()
	faults := []error{c.Admin.Validate()}
	_, _, err := net.SplitHostPort(c.Listen)
	switch {
	case err != nil:
		faults = append(faults, fmt.Errorf("console: listen %q: %w", c.Listen, err))
	case c.TLS.CertFile == "" && !c.Insecure && !rpc.Loopback(c.Listen):
		faults = append(faults, fmt.Errorf("console: listen %q can be reached by others: it needs TLS, or to be permitted as insecure", c.Listen))
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		faults = append(faults, errors.New("console: TLS needs both a certificate and a key"))
	}
	if c.TLS.CAFile != "" {
		faults = append(faults, errors.New("console: callers show tokens, and no certificates"))
	}
	for _, host := range c.Hosts {
		if host == "" || strings.ContainsAny(host, "/:*") {
			faults = append(faults, fmt.Errorf("console: host %q: want a name, without a port", host))
		}
	}
	return errors.Join(faults...)
}

// proves reports whether a service must say that it goes by a caller's token before it is called.
func (c Config) proves() bool { return c.OwnRights || !c.Insecure && !rpc.Loopback(c.Listen) }
