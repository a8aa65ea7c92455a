package trust

import (
	"errors"
	"time"

	"github.com/deltaplane/deltaplane/internal/certs"
)

// Local are the files of a server of this host, in a folder that Local makes: the authority that
// clients trust, the server's certificate and its key.
type Local struct{ CA, Cert, Key string }

// localLifetime is how long the certificate of such a server is valid; it is renewed at a start.
const localLifetime = 365 * 24 * time.Hour

// NewLocal makes the files of a server in a folder, or finds them there, and renews a certificate
// that ends soon. The authority's own key stays in the folder.
func NewLocal(dir, name string, hosts ...string) (Local, error) {
	m := maker{dir: dir, lifetime: localLifetime, now: time.Now()}
	a, ca, err := m.authority()
	if err != nil {
		return Local{}, err
	}
	in := func(file string) string { return file }
	err = errors.Join(m.write("ca.crt", ca), m.certificate(in, certs.Subject{User: name, Hosts: hosts}, a))
	return Local{CA: m.path("ca.crt"), Cert: m.path("tls.crt"), Key: m.path("tls.key")}, err
}
