package rpc

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc/stats"
)

// BenchmarkAdmission shows what the limits cost a call; a whole unary call takes about 14 µs of the server.
func BenchmarkAdmission(b *testing.B) {
	s, err := NewServer(ServerConfig{StreamWorkers: -1}, Options{})
	if err != nil {
		b.Fatal(err)
	}
	ctx := s.gate.TagConn(b.Context(), &stats.ConnTagInfo{RemoteAddr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 5}})
	for range 8 { // a handler's context is about so deep
		ctx = context.WithValue(ctx, new(int), 0) //nolint:fatcontext // on purpose
	}
	for _, name := range []string{"", "a-token"} {
		b.Run("name="+name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					n, err := s.gate.call(ctx, name)
					if err != nil {
						b.Error(err)
						return
					}
					n.Add(-1)
				}
			})
		})
	}
}
