//go:build linux

package node_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// proxy stands between the agent and a runtime and loses answers: the call was made, and the caller
// does not know.
type proxy struct {
	to *grpc.ClientConn

	mu   sync.Mutex
	rng  *rand.Rand
	rate float64
	lost map[string]int
}

// losable are the calls that change something.
var losable = []string{"RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "CreateContainer", "StartContainer", "StopContainer", "RemoveContainer"}

// startProxy serves on a socket until the test ends; it gives the socket's path.
func startProxy(t *testing.T, endpoint string, rng *rand.Rand) (*proxy, string) {
	t.Helper()
	to, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{}), grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{to: to, rng: rng, lost: map[string]int{}}
	at := filepath.Join(filepath.Dir(strings.TrimPrefix(endpoint, "unix://")), "proxy.sock")
	lis, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodec(bytesCodec{}), grpc.UnknownServiceHandler(p.handle), grpc.MaxRecvMsgSize(64<<20))
	done := make(chan error, 1)
	go func() { done <- server.Serve(lis) }()
	t.Cleanup(func() {
		server.Stop()
		if err := errors.Join(<-done, to.Close()); err != nil {
			t.Error(err)
		}
	})
	return p, "unix://" + at
}

// lose sets which share of the answers is lost.
func (p *proxy) lose(rate float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = rate
}

func (p *proxy) loses(method string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(losable, method) || p.rng.Float64() >= p.rate {
		return false
	}
	p.lost[method]++
	return true
}

// handle passes on one request and its answers, whatever they say.
func (p *proxy) handle(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	ctx := in.Context()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	out, err := p.to.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	var message []byte
	if err := in.RecvMsg(&message); err != nil {
		return err
	}
	if err := out.SendMsg(&message); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := out.CloseSend(); err != nil {
		return err
	}
	for {
		if err := out.RecvMsg(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if p.loses(path.Base(method)) {
			return status.Error(codes.Unavailable, "the answer was lost on its way")
		}
		if err := in.SendMsg(&message); err != nil {
			return err
		}
	}
}

// bytesCodec passes messages as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (bytesCodec) Unmarshal(data []byte, into any) error {
	*into.(*[]byte) = slices.Clone(data)
	return nil
}
