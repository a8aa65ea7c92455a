package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// DefaultListen is the address of a gateway that names none.
const DefaultListen = "127.0.0.1:7449"

// Config is the settings of a gateway. Its zero value is one on 127.0.0.1:7449 without TLS.
type Config struct {
	// Listen is the address of the endpoint; [DefaultListen] when empty.
	Listen string
	// TLS of the endpoint; none without a CertFile.
	TLS certs.Config
	// ClientCertificates is how callers with a client certificate of the cluster are passed on; they
	// are not asked for one where it is empty.
	ClientCertificates ClientCertificates
	// ClientCA is a PEM file of the authorities whose client certificates count, read again when it
	// changes; without it they are those of the cluster's API server, which the ConfigMap
	// kube-system/extension-apiserver-authentication names.
	ClientCA string
	// Insecure permits an address beyond loopback without TLS.
	Insecure bool
	// Admin is the port of metrics and health.
	Admin telemetry.AdminConfig
	// Cluster whose collections are served; "dev" when empty.
	Cluster string
	// AllowAll answers everybody from the index, without asking the cluster who that is and what it
	// may read: for an API server that lets everybody do everything.
	AllowAll bool
	// MaxAge is how long the gateway's state may not have been all that the index had, before reads go
	// to the API server; 10 s when zero.
	MaxAge time.Duration
	// ServeStale answers reads with the last known state while the API server cannot be reached,
	// with a Warning header that tells its age, to callers who were permitted the same within the
	// last hour.
	ServeStale bool
	// IndexSelectors selects by fields that the API server does not know and that have a declared
	// index.
	IndexSelectors bool
	// WithoutManagedFields also answers from collections whose objects lack metadata.managedFields.
	WithoutManagedFields bool
}

// ClientCertificates is how a caller whose certificate ends at the gateway is named to the API
// server.
type ClientCertificates string

const (
	// Impersonate names callers in Impersonate headers, beside the gateway's own credentials, which
	// must be permitted to impersonate them.
	Impersonate ClientCertificates = "impersonate"
	// FrontProxy names them in X-Remote headers, beside a certificate that the API server knows an
	// authenticating proxy by.
	FrontProxy ClientCertificates = "front-proxy"
)

func (c Config) withDefaults() Config {
	c.Listen = cmp.Or(c.Listen, DefaultListen)
	c.Cluster = cmp.Or(c.Cluster, "dev")
	c.MaxAge = cmp.Or(c.MaxAge, 10*time.Second)
	return c
}

// Validate reports every fault together.
func (c Config) Validate() error {
	c = c.withDefaults()
	faults := []error{c.Admin.Validate()}
	_, _, err := net.SplitHostPort(c.Listen)
	switch {
	case err != nil:
		faults = append(faults, fmt.Errorf("gateway: listen %q: %w", c.Listen, err))
	case c.TLS.CertFile == "" && !c.Insecure && !rpc.Loopback(c.Listen):
		faults = append(faults, fmt.Errorf("gateway: listen %q can be reached by others: it needs TLS, or to be permitted as insecure", c.Listen))
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		faults = append(faults, errors.New("gateway: TLS needs both a certificate and a key"))
	}
	switch c.ClientCertificates {
	case "":
		if c.ClientCA != "" {
			faults = append(faults, errors.New("gateway: a client CA needs client certificates to be taken, by impersonation or a front proxy's certificate"))
		}
	case Impersonate, FrontProxy:
		if c.TLS.CertFile == "" {
			faults = append(faults, errors.New("gateway: client certificates need TLS"))
		}
		if c.AllowAll {
			faults = append(faults, errors.New("gateway: client certificates mean nothing to an API server that lets everybody do everything"))
		}
	default:
		faults = append(faults, fmt.Errorf("gateway: client certificates %q: want %s or %s", c.ClientCertificates, Impersonate, FrontProxy))
	}
	if c.TLS.CAFile != "" {
		faults = append(faults, errors.New("gateway: the authorities of client certificates are the cluster's, or those of the client CA"))
	}
	if c.MaxAge < time.Second {
		faults = append(faults, fmt.Errorf("gateway: max age %v: want at least 1s", c.MaxAge))
	}
	return errors.Join(faults...)
}
