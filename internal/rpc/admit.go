package rpc

import (
	"context"
	"errors"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/core/access"
)

// This file is what happens to a call before any of its message is read: its handler starts once
// the headers have come, asks the authorizer, refuses what is compressed, counts the call, and only
// then reads. What the client of a refused call sends on is dropped. A tap handle would be asked
// yet earlier, but grpc-go keeps the timer of each call that one refuses until the call's deadline,
// which the caller chooses. So the one that is there only holds strangers up, see [gate.pace].

// reception is how the calls of one method are received.
type reception struct {
	public  bool // takes calls without authentication
	largest int  // bytes of one message, when they are fewer than the server's MaxMessageBytes
}

// headers are what the guard must know of a call's, and its context does not tell.
type headers struct{ encoding string } // of the messages, when they are compressed

type headersKey struct{}

const (
	// maxHeaderBytes bounds the headers of one call, as HTTP/2 counts them before compression.
	maxHeaderBytes = 64 << 10
	// maxPublicHeaderBytes bounds the headers of a call without authentication.
	maxPublicHeaderBytes = 8 << 10

	maxHealthBytes     = 4 << 10 // of a message that names a service
	maxReflectionBytes = 64 << 10
)

const (
	healthPrefix     = "/grpc.health.v1.Health/"
	reflectionPrefix = "/grpc.reflection."
)

// learn notes how the calls of a method are received. It is not safe once calls come.
func (g *guard) learn(fullMethod string, own map[string]int, most int) {
	r := &reception{largest: own[fullMethod]}
	switch {
	case strings.HasPrefix(fullMethod, healthPrefix):
		r.public, r.largest = true, maxHealthBytes
	case strings.HasPrefix(fullMethod, reflectionPrefix):
		r.largest = maxReflectionBytes
	}
	if r.largest >= most {
		r.largest = 0
	}
	g.methods[fullMethod] = r
}

// TagRPC implements stats.Handler.
func (*gate) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, headersKey{}, &headers{})
}

// HandleRPC implements stats.Handler.
func (*gate) HandleRPC(ctx context.Context, s stats.RPCStats) {
	in, ok := s.(*stats.InHeader)
	if !ok || in.Compression == "" || in.Compression == encoding.Identity {
		return
	}
	if h, ok := ctx.Value(headersKey{}).(*headers); ok {
		h.encoding = in.Compression
	}
}

var errCompressed = withInfo(status.New(codes.Unimplemented, "compressed requests are not accepted: send without grpc-encoding"),
	"COMPRESSED_REQUEST", nil).Err()

// permit decides about a call by its headers, and names its caller. A public method has none.
func (g *guard) permit(ctx context.Context, name string) (id *access.Identity, public bool, err error) {
	h, ok := ctx.Value(headersKey{}).(*headers)
	switch {
	case !ok:
		return nil, false, errors.New("rpc: a call without its headers")
	case h.encoding != "":
		g.gate.refused.WithLabelValues("compressed").Inc()
		return nil, false, errCompressed
	}
	if method := g.methods[name]; method == nil || !method.public {
		id, err = g.authorize(ctx, name)
		return id, false, err
	}
	if md, _ := metadata.FromIncomingContext(ctx); headerBytes(md) > maxPublicHeaderBytes {
		return nil, true, g.gate.refuse(refusedHeaders, "headers_too_large", "the headers of a call without authentication are too large", maxPublicHeaderBytes)
	}
	return nil, true, nil
}

func headerBytes(md metadata.MD) (n int) {
	for name, values := range md {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	return n
}

// wrap returns a service whose unary methods run within the guard before they read their message.
// An interceptor would run after that.
func (g *guard) wrap(desc *grpc.ServiceDesc, o *Options, most int) *grpc.ServiceDesc {
	wrapped := *desc
	wrapped.Methods = slices.Clone(desc.Methods)
	for i, m := range desc.Methods {
		full := "/" + desc.ServiceName + "/" + m.MethodName
		g.learn(full, o.MessageBytes, most)
		method := g.methods[full]
		wrapped.Methods[i].Handler = func(srv any, ctx context.Context, read func(any) error, next grpc.UnaryServerInterceptor) (any, error) {
			if method.largest > 0 {
				read = g.bounded(ctx, read, method.largest, false)
			}
			return g.unary(ctx, full, read, func(ctx context.Context, read func(any) error) (any, error) {
				return m.Handler(srv, ctx, read, next)
			})
		}
	}
	for _, m := range desc.Streams {
		g.learn("/"+desc.ServiceName+"/"+m.StreamName, o.MessageBytes, most)
	}
	return &wrapped
}

// registrar registers services that have no health of their own.
type registrar struct{ *Server }

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) { r.register(desc, impl) }

// GetServiceInfo implements reflection.ServiceInfoProvider.
func (r registrar) GetServiceInfo() map[string]grpc.ServiceInfo { return r.grpc.GetServiceInfo() }
