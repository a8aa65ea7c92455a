package load

import (
	"os"
	"path/filepath"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// ServerTLS is what a gRPC server of this run listens with: nothing, unless --tls asks for it.
func ServerTLS() rpc.TLSConfig {
	dir := os.Getenv(harness.TLSFolder)
	if dir == "" {
		return rpc.TLSConfig{}
	}
	return rpc.TLSConfig{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
}

// ClientTLS is what the clients of these servers trust.
func ClientTLS() rpc.TLSConfig { return rpc.TLSConfig{CAFile: ServerTLS().CertFile} }
