package rpc_test

import (
	"context"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// serveTLS serves the echo service on loopback with the named certificate, and counts its calls.
func serveTLS(t *testing.T, files rpc.TLSConfig) (port string, calls *atomic.Int64) {
	t.Helper()
	calls = &atomic.Int64{}
	srv, err := rpc.NewServer(rpc.ServerConfig{TLS: rpc.TLSConfig{CertFile: files.CertFile, KeyFile: files.KeyFile}}, rpc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	srv.RegisterService(&echoDesc, &echo{call: func(context.Context, string) error { calls.Add(1); return nil }})
	srv.SetServing("test.Echo", true)
	lis, err := rpc.Listen(rpc.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, lis) }()
	t.Cleanup(func() { cancel(); <-done })
	_, port, _ = net.SplitHostPort(lis.Addr().String())
	return port, calls
}

func TestACertificateMustBeForTheNameOrAddressThatIsDialled(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, t.TempDir())
	onlyName := func(c *x509.Certificate) { c.DNSNames = []string{"test.local"} }
	ca.issue(t, "named", onlyName)
	ca.issue(t, "local", func(c *x509.Certificate) { c.DNSNames = []string{"localhost"} })
	ca.issue(t, "ip", func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = nil, []net.IP{net.IPv4(127, 0, 0, 1)} })
	ca.issue(t, "otherip", func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = nil, []net.IP{net.IPv4(192, 0, 2, 1)} })
	token := write(t, t.TempDir(), "token", "0123456789abcdef")
	for name, c := range map[string]struct {
		cert, target, serverName string
		want                     codes.Code
	}{
		"address, certificate of a name":            {"named", "127.0.0.1:", "", codes.Unavailable},
		"address, certificate of another address":   {"otherip", "127.0.0.1:", "", codes.Unavailable},
		"address, its certificate":                  {"ip", "127.0.0.1:", "", codes.OK},
		"mapped address, its certificate":           {"ip", "[::ffff:127.0.0.1]:", "", codes.OK},
		"dns address, certificate of a name":        {"named", "dns:///127.0.0.1:", "", codes.Unavailable},
		"dns address, its certificate":              {"ip", "dns:///127.0.0.1:", "", codes.OK},
		"passthrough address, certificate of name":  {"named", "passthrough:///127.0.0.1:", "", codes.Unavailable},
		"name, certificate of the address":          {"ip", "localhost:", "", codes.Unavailable},
		"dns name, certificate of the address":      {"ip", "dns:///localhost:", "", codes.Unavailable},
		"dns name, its certificate":                 {"local", "dns:///localhost:", "", codes.OK},
		"address, server name of the certificate":   {"named", "127.0.0.1:", "test.local", codes.OK},
		"address, another server name":              {"named", "127.0.0.1:", "elsewhere.local", codes.Unavailable},
		"address, another address as a server name": {"ip", "127.0.0.1:", "192.0.2.1", codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port, calls := serveTLS(t, ca.files(c.cert))
			conn, err := rpc.Dial(c.target+port, rpc.DialConfig{
				TLS: rpc.TLSConfig{CAFile: filepath.Join(ca.dir, "ca.crt")}, ServerName: c.serverName, TokenFile: token,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.Invoke(t.Context(), "/test.Echo/Call", wrapperspb.String(""), &emptypb.Empty{}); rpc.Code(err) != c.want {
				t.Errorf("call: %v, want %v", err, c.want)
			}
			if c.want != codes.OK && calls.Load() != 0 {
				t.Error("a server that is not the one dialled got the call, and with it the token")
			}
		})
	}
}

func TestEachServerBehindANameIsHeldToThatName(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, t.TempDir())
	ca.issue(t, "server", nil)
	ca.issue(t, "stranger", func(c *x509.Certificate) { c.DNSNames = []string{"stranger.local"} })
	port, calls := serveTLS(t, ca.files("server"))
	strangerPort, strangerCalls := serveTLS(t, ca.files("stranger"))
	found := manual.NewBuilderWithScheme("found")
	found.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: "127.0.0.1:" + strangerPort}, {Addr: "127.0.0.1:" + port}}})
	conn, err := rpc.Dial("found:///test.local", rpc.DialConfig{
		TLS: rpc.TLSConfig{CAFile: filepath.Join(ca.dir, "ca.crt")}, Extra: []grpc.DialOption{grpc.WithResolvers(found)},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const n = 20
	for range n {
		if err := conn.Invoke(t.Context(), "/test.Echo/Call", wrapperspb.String(""), &emptypb.Empty{}); err != nil {
			t.Fatal(err)
		}
	}
	if calls.Load() != n || strangerCalls.Load() != 0 {
		t.Errorf("%d calls reached the server, %d the stranger; want all and none", calls.Load(), strangerCalls.Load())
	}
}

func TestANameIsCheckedAgainstAnAuthorityThatWasReplaced(t *testing.T) {
	t.Parallel()
	first, second := newAuthority(t, t.TempDir()), newAuthority(t, t.TempDir())
	for name, address := range map[string]net.IP{"ip": net.IPv4(127, 0, 0, 1), "otherip": net.IPv4(192, 0, 2, 1)} {
		second.issue(t, name, func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = nil, []net.IP{address} })
	}
	port, _ := serveTLS(t, second.files("ip"))
	strangerPort, strangerCalls := serveTLS(t, second.files("otherip"))
	caFile := filepath.Join(first.dir, "ca.crt")
	dial := func(port string) *grpc.ClientConn {
		conn, err := rpc.Dial("127.0.0.1:"+port, rpc.DialConfig{TLS: rpc.TLSConfig{CAFile: caFile}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	call := func(conn *grpc.ClientConn) error {
		return conn.Invoke(t.Context(), "/test.Echo/Call", wrapperspb.String(""), &emptypb.Empty{})
	}
	known, stranger := dial(port), dial(strangerPort)
	if err := call(known); rpc.Code(err) != codes.Unavailable {
		t.Fatalf("a server of another authority: %v, want Unavailable", err)
	}
	renewed, err := os.ReadFile(filepath.Join(second.dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(caFile, renewed, 0o600); err != nil {
		t.Fatal(err)
	}
	// WaitForReady rides out the back-off of the connection.
	if err := known.Invoke(t.Context(), "/test.Echo/Call", wrapperspb.String(""), &emptypb.Empty{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	if err := call(stranger); rpc.Code(err) != codes.Unavailable || strangerCalls.Load() != 0 {
		t.Errorf("a server of another address: %v after %d calls, want Unavailable and none", err, strangerCalls.Load())
	}
}
