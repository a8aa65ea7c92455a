package client

import (
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// DialConfig says how to reach a Deltaplane server; its zero value is plain text
// on a trusted network.
type DialConfig = rpc.DialConfig

// TLSConfig names the PEM files of a [DialConfig].
type TLSConfig = rpc.TLSConfig

// Dial prepares a connection to a Deltaplane service, "host:port". It connects
// on first use, and again by itself; a name with several addresses is used round
// robin. One connection serves any number of clients. The caller closes it.
func Dial(target string, cfg DialConfig) (*grpc.ClientConn, error) { return rpc.Dial(target, cfg) }
