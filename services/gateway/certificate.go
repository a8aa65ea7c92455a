package gateway

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// certificates says who shows a client certificate, by the authorities whose certificates the
// cluster's API server takes.
type certificates struct {
	cluster string
	extra   bool                  // identities say which certificate was shown
	files   *certs.Files[*trust]  // the authorities; nil reads them from the cluster
	read    atomic.Pointer[trust] // from the cluster; nil until they are known
	log     *slog.Logger
}

// trust is what some authorities have signed.
type trust struct {
	pem  string
	pool *x509.CertPool

	mu    sync.Mutex
	known map[[sha256.Size]byte]certified // guarded by mu
}

// certified is who shows a certificate, until it ends.
type certified struct {
	id    *access.Identity
	until time.Time
}

const maxCertified = 4096

var (
	errNoAuthorities  = errors.New("which authorities sign client certificates of the cluster is not known yet")
	errBadAuthorities = errors.New("no certificate of an authority can be read")
	errNameless       = errors.New("the client certificate has no common name")
	errNoClientCA     = errors.New("the cluster takes no client certificates: " + authoritiesMap + " names no authority")
)

const (
	// Where clusters say to servers that extend theirs which authorities they trust.
	authoritiesMap   = "extension-apiserver-authentication"
	authoritiesSpace = "kube-system"
	authoritiesKey   = "client-ca-file"

	authoritiesRefresh = time.Minute
	authoritiesRetry   = 5 * time.Second
)

func newCertificates(cfg Config, log *slog.Logger) (*certificates, error) {
	c := &certificates{cluster: cfg.Cluster, extra: cfg.ClientCertificates == FrontProxy, log: log}
	if cfg.ClientCA == "" {
		return c, nil
	}
	var err error
	c.files, err = certs.OpenFiles(func() (*trust, error) {
		text, err := os.ReadFile(cfg.ClientCA)
		if err != nil {
			return nil, err
		}
		return newTrust(string(text))
	}, cfg.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("gateway: client CA: %w", err)
	}
	return c, nil
}

func newTrust(pem string) (*trust, error) {
	t := &trust{pem: pem, pool: x509.NewCertPool(), known: map[[sha256.Size]byte]certified{}}
	if !t.pool.AppendCertsFromPEM([]byte(pem)) {
		return nil, errBadAuthorities
	}
	return t, nil
}

// follow keeps the authorities up to date until ctx ends.
func (c *certificates) follow(ctx context.Context, kc *kube.Client) {
	if c.files != nil {
		return
	}
	said := ""
	for {
		wait := authoritiesRefresh
		if err := c.refresh(ctx, kc); err != nil {
			wait = authoritiesRetry
			if err.Error() != said && ctx.Err() == nil {
				said = err.Error()
				c.log.Warn("the authorities of client certificates cannot be read", telemetry.Err(err))
			}
		}
		if !attempt.Sleep(ctx, wait) {
			return
		}
	}
}

func (c *certificates) refresh(ctx context.Context, kc *kube.Client) error {
	within, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	raw, err := kc.Get(within, kube.Ref{
		Resource: kube.Resource{Version: "v1", Name: "configmaps", Namespaced: true}, Namespace: authoritiesSpace, Name: authoritiesMap,
	})
	if err != nil {
		return err
	}
	var object struct{ Data map[string]string }
	if err := json.Unmarshal(raw, &object); err != nil {
		return err
	}
	pem := object.Data[authoritiesKey]
	if pem == "" {
		return errNoClientCA
	}
	if now := c.read.Load(); now != nil && now.pem == pem {
		return nil
	}
	t, err := newTrust(pem)
	if err != nil {
		return err
	}
	c.read.Store(t)
	return nil
}

// ask makes connections ask for a certificate, which they do without.
func (c *certificates) ask(cfg *tls.Config) {
	next := cfg.GetConfigForClient
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		conn, err := next(hello)
		if err != nil {
			return nil, err
		}
		conn.ClientAuth = tls.RequestClientCert
		if t := c.trust(); t != nil {
			conn.ClientCAs = t.pool // a client with several certificates chooses by it
		}
		return conn, nil
	}
}

func (c *certificates) trust() *trust {
	if c.files != nil {
		return c.files.Get()
	}
	return c.read.Load()
}

// identity is whose certificate a connection has shown, as API servers read it. An error says why
// that counts for nothing.
func (c *certificates) identity(shown []*x509.Certificate) (*access.Identity, error) {
	t := c.trust()
	if t == nil {
		return nil, errNoAuthorities
	}
	now, sum := time.Now(), sha256.Sum256(shown[0].Raw)
	if id := t.get(sum, now); id != nil {
		return id, nil
	}
	others := x509.NewCertPool()
	for _, between := range shown[1:] {
		others.AddCert(between)
	}
	o := x509.VerifyOptions{Roots: t.pool, Intermediates: others, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	chains, err := shown[0].Verify(o)
	if err != nil {
		return nil, err
	}
	id, err := c.of(shown[0], sum)
	if err != nil {
		return nil, err
	}
	t.put(sum, certified{id, ends(chains[0])})
	return id, nil
}

func (t *trust) get(sum [sha256.Size]byte, now time.Time) *access.Identity {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.known[sum]; ok && now.Before(known.until) {
		return known.id
	}
	return nil
}

func (t *trust) put(sum [sha256.Size]byte, c certified) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.known) >= maxCertified {
		clear(t.known)
	}
	t.known[sum] = c
}

// ends is when the first certificate of a chain does.
func ends(chain []*x509.Certificate) time.Time {
	until := chain[0].NotAfter
	for _, c := range chain[1:] {
		if c.NotAfter.Before(until) {
			until = c.NotAfter
		}
	}
	return until
}

func (c *certificates) of(cert *x509.Certificate, sum [sha256.Size]byte) (*access.Identity, error) {
	if cert.Subject.CommonName == "" {
		return nil, errNameless
	}
	id := &access.Identity{
		User: cert.Subject.CommonName, Groups: append(slices.Clip(cert.Subject.Organization), access.Authenticated),
		Cluster: c.cluster, Source: access.Cluster,
	}
	for _, name := range cert.Subject.Names {
		if uid, ok := name.Value.(string); ok && name.Type.String() == uidAttribute {
			id.UID = uid
		}
	}
	if c.extra {
		id.Extra = map[string][]string{"authentication.kubernetes.io/credential-id": {"X509SHA256=" + hex.EncodeToString(sum[:])}}
	}
	return id, nil
}

// uidAttribute is the attribute of a subject that has the UID of a user.
const uidAttribute = "1.3.6.1.4.1.57683.2"
