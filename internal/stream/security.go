package stream

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/deltaplane/deltaplane/internal/certs"
)

// Option is one of a NATS connection.
type Option = nats.Option

// Security says how a connection authenticates this side, by a key or by a password, and checks the
// other. All of it is read from files, again at each connection.
type Security struct {
	// NKeyFile holds the seed of an nkey.
	NKeyFile string
	// Username and PasswordFile need one another.
	Username, PasswordFile string
	// TLS is used when any of it is set.
	TLS certs.Config
}

// Options are those of [Config.Options]. All faults are reported together.
func (s Security) Options() ([]Option, error) {
	var errs []error
	var options []Option
	if s.NKeyFile != "" {
		option, err := nats.NkeyOptionFromSeed(s.NKeyFile)
		if err != nil {
			errs = append(errs, fmt.Errorf("nkey file %q: %w", s.NKeyFile, err))
		}
		options = append(options, option)
	}
	if s.PasswordFile != "" {
		password, err := readPassword(s.PasswordFile)
		errs = append(errs, err)
		options = append(options, nats.UserInfoHandler(func() (string, string) {
			if renewed, err := readPassword(s.PasswordFile); err == nil {
				return s.Username, renewed
			}
			return s.Username, password
		}))
	}
	if s.TLS != (certs.Config{}) {
		files, err := certs.Open(s.TLS)
		errs = append(errs, err)
		options = append(options, nats.Secure())
		if s.TLS.CertFile != "" {
			options = append(options, nats.ClientTLSConfig(
				func() (tls.Certificate, error) { return *files.Get().Certificate, nil },
				func() (*x509.CertPool, error) { return files.Get().Authorities, nil }))
		} else {
			options = append(options, nats.RootCAs(s.TLS.CAFile))
		}
	}
	return options, errors.Join(errs...)
}

// readPassword never quotes what it reads.
func readPassword(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("password file: %w", err)
	}
	password := strings.TrimSpace(string(text))
	if password == "" {
		return "", fmt.Errorf("password file %q is empty", path)
	}
	return password, nil
}

// NewUserKey makes the seed of a NATS user's nkey.
func NewUserKey() ([]byte, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	return pair.Seed()
}

// PublicKey is the public key of a seed, by which a server knows the user.
func PublicKey(seed []byte) (string, error) {
	pair, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(seed))))
	if err != nil {
		return "", err
	}
	return pair.PublicKey()
}
