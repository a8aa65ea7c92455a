package trust

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/seal"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

// authorityLifetime is how long the authority is valid.
const authorityLifetime = 10 * 365 * 24 * time.Hour

// made is a file that was made or found.
type made struct {
	Path  string     `json:"path"`
	What  string     `json:"what"`
	State string     `json:"state"`           // "made", "renewed" or "kept"
	Until *time.Time `json:"until,omitempty"` // of certificates
}

// The states of a file.
const (
	stateMade    = "made"
	stateRenewed = "renewed"
	stateKept    = "kept"
)

// maker makes the files of a deployment that are not there, and renews certificates.
type maker struct {
	dir      string
	hosts    []string // further ones of every server
	apiURL   string
	lifetime time.Duration
	now      time.Time

	all []made
}

func (m *maker) run() error {
	authority, ca, err := m.authority()
	if err != nil {
		return err
	}
	users := map[string]string{} // public nkeys by part
	for _, p := range parts() {
		if err := m.part(p, authority, ca, users); err != nil {
			return err
		}
	}
	if err := m.always("nats/users.conf", "NATS users and what they may do", natsUsers(users)); err != nil {
		return err
	}
	return errors.Join(m.encryption(), m.redis(), m.token())
}

// encryption makes the file of encryption keys, which the reflector and the indexers have alike:
// that of the reflector counts.
func (m *maker) encryption() error {
	const file, what = "reflector/encryption.keys", "keys that encrypt secrets in the log and in checkpoints"
	if err := m.once(file, what, seal.NewFile); err != nil {
		return err
	}
	keys, err := os.ReadFile(m.path(file))
	if err != nil {
		return err
	}
	return m.always("indexer/encryption.keys", what, keys)
}

// authority reads the authority, or makes it.
func (m *maker) authority() (*certs.Authority, []byte, error) {
	cert, certErr := os.ReadFile(m.path("authority/ca.crt"))
	key, keyErr := os.ReadFile(m.path("authority/ca.key"))
	switch {
	case certErr == nil && keyErr == nil:
		a, err := certs.LoadAuthority(certs.Pair{Cert: cert, Key: key})
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", m.path("authority"), err)
		}
		return a, cert, m.note("authority/ca.crt", "the authority", stateKept)
	case !errors.Is(certErr, fs.ErrNotExist) || !errors.Is(keyErr, fs.ErrNotExist):
		return nil, nil, fmt.Errorf("the authority is not whole: %w", errors.Join(certErr, keyErr))
	}
	a, pair, err := certs.NewAuthority("deltaplane", m.now, authorityLifetime)
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(m.write("authority/ca.key", pair.Key), m.write("authority/ca.crt", pair.Cert)); err != nil {
		return nil, nil, err
	}
	return a, pair.Cert, m.note("authority/ca.crt", "the authority", stateMade)
}

func (m *maker) part(p part, a *certs.Authority, ca []byte, users map[string]string) error {
	in := func(name string) string { return p.name + "/" + name }
	if err := m.write(in("ca.crt"), ca); err != nil {
		return err
	}
	if err := m.certificate(in, p.subject(m.hosts), a); err != nil {
		return err
	}
	if p.log != nil {
		public, err := m.nkey(in("nats.nk"))
		if err != nil {
			return err
		}
		users[p.name] = public
	}
	if p.answers {
		if err := m.once(in("policy.yaml"), "what callers may do", func() ([]byte, error) { return []byte(policy), nil }); err != nil {
			return err
		}
	}
	if p.calls {
		return m.always(in("kubeconfig"), "how to call "+m.apiURL, kubeconfig(m.apiURL))
	}
	return nil
}

// certificate makes a part's certificate, or renews it when a third of its time is left, or its
// names are others.
func (m *maker) certificate(in func(string) string, s certs.Subject, a *certs.Authority) error {
	state := stateMade
	if old, err := os.ReadFile(m.path(in("tls.crt"))); err == nil {
		_, keyErr := os.Stat(m.path(in("tls.key")))
		until, signed := a.Signed(old, s)
		if keyErr == nil && signed && until.Sub(m.now) > m.lifetime/3 {
			return m.note(in("tls.crt"), "certificate of "+s.User, stateKept)
		}
		state = stateRenewed
	}
	pair, err := a.Issue(s, m.now, m.lifetime)
	if err != nil {
		return err
	}
	// A reader between the two finds a pair that does not match, and keeps the one it has.
	if err := errors.Join(m.write(in("tls.key"), pair.Key), m.write(in("tls.crt"), pair.Cert)); err != nil {
		return err
	}
	return m.note(in("tls.crt"), "certificate of "+s.User, state)
}

// nkey makes the seed of a NATS user, and returns its public key.
func (m *maker) nkey(path string) (string, error) {
	err := m.once(path, "key of a NATS user", stream.NewUserKey)
	if err != nil {
		return "", err
	}
	seed, err := os.ReadFile(m.path(path))
	if err != nil {
		return "", err
	}
	public, err := stream.PublicKey(seed)
	if err != nil {
		return "", fmt.Errorf("%s: %w", m.path(path), err)
	}
	return public, nil
}

// natsUsers is a part of a configuration of nats-server: the users and what they may do.
func natsUsers(public map[string]string) []byte {
	var b strings.Builder
	b.WriteString("# Made by deltaplane certs init. Each service has the subjects that it needs; nobody else gets in.\naccounts {\n  DELTAPLANE {\n    jetstream: enabled\n    users: [\n")
	for _, p := range parts() {
		if p.log == nil {
			continue
		}
		fmt.Fprintf(&b, "      # %s\n      {nkey: %s, permissions: {\n        publish: {allow: [%s]}\n        subscribe: {allow: [%s]}\n      }}\n",
			p.name, public[p.name], quoted(p.log.Publish), quoted(p.log.Subscribe))
	}
	b.WriteString("    ]\n  }\n}\n")
	return []byte(b.String())
}

func quoted(all []string) string {
	out := make([]string, len(all))
	for i, one := range all {
		out[i] = `"` + one + `"`
	}
	return strings.Join(out, ", ")
}

// redis makes the password of the queue, and the users of Redis.
func (m *maker) redis() error {
	if err := m.once("queue/redis-password", "password of the Redis user deltaplane", func() ([]byte, error) {
		return []byte(rand.Text() + "\n"), nil
	}); err != nil {
		return err
	}
	password, err := os.ReadFile(m.path("queue/redis-password"))
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(string(password))))
	// A health check may ping without a password; it has shown a certificate.
	users := "user default on nopass resetkeys resetchannels -@all +ping\n" +
		"user deltaplane on #" + hex.EncodeToString(sum[:]) + " " + strings.Join(redis.Rules(""), " ") + "\n"
	return m.always("redis/users.acl", "Redis users and what they may do", []byte(users))
}

// kubeconfig calls an API server with the certificate beside it.
func kubeconfig(url string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
  - {name: deltaplane, cluster: {server: %q, certificate-authority: ca.crt}}
users:
  - {name: deltaplane, user: {client-certificate: tls.crt, client-key: tls.key}}
contexts:
  - {name: deltaplane, context: {cluster: deltaplane, user: deltaplane}}
current-context: deltaplane
`, url)
}

func (m *maker) path(name string) string { return filepath.Join(m.dir, filepath.FromSlash(name)) }

// once makes a file that is not there.
func (m *maker) once(name, what string, content func() ([]byte, error)) error {
	if _, err := os.Stat(m.path(name)); err == nil {
		return m.note(name, what, stateKept)
	}
	data, err := content()
	if err == nil {
		err = m.write(name, data)
	}
	if err != nil {
		return err
	}
	return m.note(name, what, stateMade)
}

// always makes a file that follows from others.
func (m *maker) always(name, what string, content []byte) error {
	state := stateMade
	if old, err := os.ReadFile(m.path(name)); err == nil {
		if state = stateRenewed; string(old) == string(content) {
			state = stateKept
		}
	}
	if err := m.write(name, content); err != nil {
		return err
	}
	return m.note(name, what, state)
}

func (m *maker) note(name, what, state string) error {
	f := made{Path: m.path(name), What: what, State: state}
	if strings.HasSuffix(name, ".crt") {
		until, err := certs.Expires(f.Path)
		if err != nil {
			return err
		}
		f.Until = &until
	}
	m.all = append(m.all, f)
	return nil
}

// write replaces a file at once, readable for its owner alone. A folder that is there may be a
// mount that belongs to another one.
func (m *maker) write(name string, data []byte) error {
	path := m.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // with mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
