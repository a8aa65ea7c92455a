package testing

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// reads are the calls of the index by the code under test.
type reads struct {
	adversary *adversary
	activity  *activity
	stale     *grpc.ClientConn // to the replica that lags
	pages     sync.Map         // page tokens of that replica
}

// chosen are the calls that are answered from a state, so that it may be an older one.
var chosen = map[string]bool{
	indexv1.IndexService_Get_FullMethodName: true, indexv1.IndexService_BatchGet_FullMethodName: true, indexv1.IndexService_List_FullMethodName: true,
	indexv1.IndexService_ByIndex_FullMethodName: true, indexv1.IndexService_Index_FullMethodName: true, indexv1.IndexService_IndexKeys_FullMethodName: true,
	indexv1.IndexService_ListIndexFuncValues_FullMethodName: true, indexv1.IndexService_Count_FullMethodName: true,
}

func (r *reads) unary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	defer r.activity.call()()
	r.activity.begin(&r.activity.index)
	stale := func() error { return r.stale.Invoke(ctx, method, req, reply, opts...) }
	if token := pageOf(req); token != "" { // the snapshot is where the first page was
		if _, ok := r.pages.LoadAndDelete(token); ok {
			return r.page(stale(), reply)
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	}
	if rpc.Apart(ctx, &rpc.Place{}) { // the client asks another replica meanwhile: that is one call
		err := invoke(ctx, method, req, reply, conn, opts...)
		if rpc.Code(err) == codes.Canceled && ctx.Err() == nil {
			return stale()
		}
		return err
	}
	if !chosen[method] {
		return invoke(ctx, method, req, reply, conn, opts...)
	}
	switch d := r.adversary.decide("index: "+name(method)+" "+subject(req), staleRead, failedRead); d.kind {
	case failedRead:
		return failure(req)
	case staleRead:
		return r.page(stale(), reply)
	default:
		return invoke(ctx, method, req, reply, conn, opts...)
	}
}

// page remembers that the next page is the lagging replica's.
func (r *reads) page(err error, reply any) error {
	if next, ok := reply.(interface{ GetNextPageToken() string }); err == nil && ok && next.GetNextPageToken() != "" {
		r.pages.Store(next.GetNextPageToken(), true)
	}
	return err
}

func pageOf(req any) string {
	if p, ok := req.(interface{ GetPageToken() string }); ok {
		return p.GetPageToken()
	}
	return ""
}

// The failures that are made up, as the index answers them.
var (
	errAway    = errors.New("the replica goes away (package client/testing)")
	errBehind  = errors.New("the replica is behind (package client/testing)")
	readFaults = []rpc.Rule{
		{Is: errAway, Code: codes.Unavailable, Reason: "STOPPING"},
		{Is: errBehind, Code: codes.DeadlineExceeded, Reason: "REVISION_NOT_REACHED"},
	}
)

// failure is what a replica answers that goes away, or has not reached what is asked for.
func failure(req any) error {
	if c, ok := req.(interface{ GetConsistency() *indexv1.Consistency }); ok && c.GetConsistency().GetAtLeast() != nil {
		return rpc.Status(errBehind, readFaults)
	}
	return rpc.Status(errAway, readFaults)
}

// name is the last part of a full method name.
func name(method string) string { return method[strings.LastIndexByte(method, '/')+1:] }

// subject is what a request is about: its texts, in the order of its fields.
func subject(req any) string {
	m, ok := req.(proto.Message)
	if !ok {
		return ""
	}
	var out []string
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Kind() != protoreflect.StringKind || f.IsMap() || !m.ProtoReflect().Has(f) {
			continue
		}
		value := m.ProtoReflect().Get(f)
		if !f.IsList() {
			out = append(out, value.String())
			continue
		}
		for j := range value.List().Len() {
			out = append(out, value.List().Get(j).String())
		}
	}
	return strings.Join(out, " ")
}

func (r *reads) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	r.activity.begin(&r.activity.index)
	switch {
	case method == indexv1.IndexService_Watch_FullMethodName:
		open := func(ctx context.Context, stale bool) (grpc.ClientStream, error) {
			if stale {
				return r.stale.NewStream(ctx, desc, method, opts...)
			}
			return streamer(ctx, desc, conn, method, opts...)
		}
		return &watchStream{r: r, parent: ctx, open: open}, nil
	case method == indexv1.IndexService_Query_FullMethodName && r.adversary.seed != 0:
		// Clients then make calls of their own, of which each is decided about.
		return nil, status.Error(codes.Unimplemented, "reads by stream are not part of an adverse environment")
	}
	return streamer(ctx, desc, conn, method, opts...)
}

// watchStream is one stream of a watch. It is opened when it is known what it is of.
type watchStream struct {
	*breakable
	r      *reads
	parent context.Context //nolint:containedctx // the stream's
	open   func(ctx context.Context, stale bool) (grpc.ClientStream, error)

	collection string
	at         delta.Revision // guarded by activity.mu
}

// Context implements grpc.ClientStream.
func (s *watchStream) Context() context.Context { return s.parent }

// SendMsg implements grpc.ClientStream.
func (s *watchStream) SendMsg(m any) error {
	req, ok := m.(*indexv1.WatchRequest)
	if !ok {
		return status.Error(codes.Internal, fmt.Sprintf("testing: a watch was asked for by %T", m))
	}
	s.collection = req.GetCollection()
	d := s.r.adversary.decide("index: Watch "+subject(req), staleRead)
	var err error
	s.breakable, err = newBreakable(s.parent, func(ctx context.Context) (grpc.ClientStream, error) {
		return s.open(ctx, d.kind == staleRead)
	}, func() { s.r.activity.watch(s, false) })
	if err != nil {
		return err
	}
	s.r.activity.watch(s, true)
	if req.GetBookmarkInterval() == nil { // a watch that selects hears of its revision by nothing else
		req = proto.CloneOf(req)
		req.BookmarkInterval = durationpb.New(time.Second)
	}
	return s.breakable.SendMsg(req)
}

// RecvMsg implements grpc.ClientStream.
func (s *watchStream) RecvMsg(m any) error {
	if err := s.breakable.RecvMsg(m); err != nil {
		return err
	}
	resp, ok := m.(*indexv1.WatchResponse)
	if !ok {
		return nil
	}
	if resp.GetPosition() != nil { // an initial state begins again, and a long one would never end
		for _, e := range resp.GetEvents().GetEvents() {
			if s.r.adversary.decide("index: event of "+s.collection+" "+e.GetObject().GetKey(), brokenStream).kind == brokenStream {
				s.tear() // behind this message
			}
		}
	}
	s.r.activity.received(s, revision(resp.GetRevision()))
	return nil
}

func revision(r *deltav1.Revision) delta.Revision {
	return delta.Revision{Epoch: r.GetEpoch(), RV: r.GetResourceVersion()}
}
