package indexer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
)

// server is the IndexService. Methods whose answers are stored bytes return
// frames and are not part of the generated interface; serviceDesc calls them.
type server struct {
	*Service
	indexv1.UnimplementedIndexServiceServer
}

// serviceDesc is the generated description with the hot methods replaced by
// ones that read their requests themselves and answer messages being built.
var serviceDesc = func() grpc.ServiceDesc {
	hot := map[string]grpc.MethodHandler{
		"Get":      unary(indexv1.IndexService_Get_FullMethodName, newGetRequest, (*server).get),
		"BatchGet": unary(indexv1.IndexService_BatchGet_FullMethodName, newPlain[indexv1.BatchGetRequest], (*server).batchGet),
		"List":     unary(indexv1.IndexService_List_FullMethodName, newPlain[indexv1.ListRequest], (*server).list),
		"ByIndex":  unary(indexv1.IndexService_ByIndex_FullMethodName, newByIndexRequest, (*server).byIndex),
		"Index":    unary(indexv1.IndexService_Index_FullMethodName, newPlain[indexv1.IndexRequest], (*server).byExample),
		// The answers of these are counted too, while they are sent.
		"IndexKeys":           unary(indexv1.IndexService_IndexKeys_FullMethodName, newPlain[indexv1.IndexKeysRequest], generated((*server).IndexKeys)),
		"ListIndexFuncValues": unary(indexv1.IndexService_ListIndexFuncValues_FullMethodName, newPlain[indexv1.ListIndexFuncValuesRequest], generated((*server).ListIndexFuncValues)),
		"ListIndexers":        unary(indexv1.IndexService_ListIndexers_FullMethodName, newPlain[indexv1.ListIndexersRequest], generated((*server).ListIndexers)),
		"Count":               unary(indexv1.IndexService_Count_FullMethodName, newPlain[indexv1.CountRequest], generated((*server).Count)),
		"ListCollections":     unary(indexv1.IndexService_ListCollections_FullMethodName, newPlain[indexv1.ListCollectionsRequest], generated((*server).ListCollections)),
		"WaitForRevision":     unary(indexv1.IndexService_WaitForRevision_FullMethodName, newPlain[indexv1.WaitForRevisionRequest], generated((*server).WaitForRevision)),
	}
	desc := indexv1.IndexService_ServiceDesc
	desc.Methods = slices.Clone(desc.Methods)
	for i, m := range desc.Methods {
		if h, ok := hot[m.MethodName]; ok {
			desc.Methods[i].Handler = h
		}
	}
	return desc
}()

// request is a message, and where it comes from.
type request[M any] interface {
	// target is what the codec decodes into.
	target() any
	message() *M
	// release ends the use of the message and its strings.
	release()
}

// plain is a request that generated code reads.
type plain[M any] struct{ m M }

func newPlain[M any]() *plain[M] { return new(plain[M]) }

func (p *plain[M]) target() any { return &p.m }
func (p *plain[M]) message() *M { return &p.m }
func (p *plain[M]) release()    {}

// unary is what protoc-gen-go-grpc generates for a method, but for the types of
// request and answer. After an error the request is left to the collector: the
// error may hold its strings.
func unary[R request[M], M any](name string, fresh func() R, call func(*server, context.Context, *M) (*out, error)) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		req := fresh()
		if err := dec(req.target()); err != nil {
			return nil, err
		}
		handle := func(ctx context.Context, _ any) (any, error) {
			s := srv.(*server)
			o, err := call(s, ctx, req.message())
			if err != nil {
				return nil, err
			}
			if err := s.charge(ctx, o, streamCost); err != nil {
				o.free()
				return nil, err
			}
			req.release()
			return o, nil
		}
		if interceptor == nil {
			return handle(ctx, req)
		}
		return interceptor(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: name}, handle)
	}
}

// maxBatch is how many keys or revisions one call may name.
const maxBatch = 1000

// find returns the collection a request field names.
func (s *Service) find(field, name string) (*collection, error) {
	if name == "" {
		return nil, rpc.InvalidArgument(field, "is required")
	}
	known := s.discovered.Load() // read first: what is found after it is not missed
	c, err := s.names.Load().find(name)
	switch {
	case err != nil && strings.ContainsAny(name, " \t\n%"):
		return nil, rpc.InvalidArgument(field, fmt.Sprintf("%.100q is not a collection name", name))
	case errors.Is(err, errCollectionNotFound) && !known:
		return nil, newFault(errNotSynced, "the logs are not listed yet", "collection", name)
	case errors.Is(err, errCollectionNotFound):
		return nil, s.unknown(fmt.Sprintf("%.100q", name), name)
	}
	return c, err
}

// unknown says that there is no such collection, and which there are.
func (s *Service) unknown(what, name string) error {
	var names []string
	for _, c := range s.names.Load().all {
		names = append(names, c.name)
	}
	return newFault(errCollectionNotFound, what+"; "+rpc.ThereAre(names, name), "collection", name)
}

func checkKey(field, key string) error {
	if _, err := delta.ParseKey(key); err != nil {
		return rpc.InvalidField(field, err)
	}
	return nil
}

// bounds writes the revision of the snapshot that an answer comes from, and its
// upper bound.
func (o *out) bounds(revision, upper int, snap *store.Snapshot) {
	st := snap.State()
	o.revision(revision, st.Revision)
	o.revision(upper, st.Upper)
}

func (s *server) get(ctx context.Context, req *indexv1.GetRequest) (*out, error) {
	c, err := s.find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	if err := checkKey("key", req.GetKey()); err != nil {
		return nil, err
	}
	p, err := project(req.GetView(), req.GetFieldMask())
	if err != nil {
		return nil, err
	}
	snap, err := s.read(ctx, c, req.GetConsistency())
	if err != nil {
		return nil, err
	}
	obj := snap.Get(req.GetKey())
	if obj == nil {
		if err := c.keyFits(snap, "key", req.GetKey()); err != nil {
			return nil, err
		}
		return nil, newFault(errKeyNotFound, fmt.Sprintf("%q in %s", req.GetKey(), c.name), "collection", c.name, "key", req.GetKey()).reached(snap)
	}
	if obj.Faulty() {
		return nil, newFault(errKeyQuarantined, fmt.Sprintf("%q in %s: %s", obj.Key(), c.name, obj.Fault()), "collection", c.name, "key", obj.Key()).reached(snap)
	}
	o := newOut()
	if !o.object(obj, &p, "") {
		return nil, newFault(errKeyQuarantined, fmt.Sprintf("%q in %s: its stored form is damaged", obj.Key(), c.name), "collection", c.name, "key", obj.Key()).reached(snap)
	}
	o.bounds(2, 3, snap)
	return o, nil
}

func (s *server) batchGet(ctx context.Context, req *indexv1.BatchGetRequest) (*out, error) {
	c, err := s.find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	if n := len(req.GetKeys()); n == 0 || n > maxBatch {
		return nil, rpc.InvalidArgument("keys", fmt.Sprintf("has %d entries, want 1 to %d", n, maxBatch))
	}
	for i, key := range req.GetKeys() {
		if _, err := delta.ParseKey(key); err != nil {
			return nil, rpc.InvalidField(fmt.Sprintf("keys[%d]", i), err)
		}
	}
	p, err := project(req.GetView(), req.GetFieldMask())
	if err != nil {
		return nil, err
	}
	snap, err := s.read(ctx, c, req.GetConsistency())
	if err != nil {
		return nil, err
	}
	o := newOut()
	for i, key := range req.GetKeys() {
		obj := snap.Get(key)
		switch {
		case obj == nil:
			if err := c.keyFits(snap, fmt.Sprintf("keys[%d]", i), key); err != nil {
				o.free()
				return nil, err
			}
			o.element(2, key)
		case obj.Faulty():
			o.element(3, key)
		default:
			if mark := o.mark(); !o.object(obj, &p, "") {
				o.rewind(mark)
				o.element(3, key)
			}
		}
		if o.len() > s.cfg.MaxResponseBytes {
			return nil, s.tooLarge("ask for fewer keys, or for less of each object")
		}
	}
	o.bounds(4, 5, snap)
	return o, nil
}

func (s *Service) tooLarge(advice string) error {
	return newFault(errTooLarge, fmt.Sprintf("more than %d bytes: %s", s.cfg.MaxResponseBytes, advice))
}

// byExample is the method Index.
func (s *server) byExample(ctx context.Context, req *indexv1.IndexRequest) (*out, error) {
	c, err := s.find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	p, err := project(req.GetView(), req.GetFieldMask())
	if err != nil {
		return nil, err
	}
	example, err := extract.New(c.planOf(req.GetIndex())).Example(ctx, req.GetObject())
	if err != nil {
		return nil, rpc.InvalidField("object", err)
	}
	snap, err := s.read(ctx, c, req.GetConsistency())
	if err != nil {
		return nil, err
	}
	values, err := snap.Values(req.GetIndex(), example)
	if err != nil {
		return nil, c.indexError(err)
	}
	hits, err := snap.ByIndex(req.GetIndex(), values...)
	if err := tolerate(err, req.GetStrict()); err != nil {
		return nil, c.indexError(err)
	}
	o := newOut()
	var faulty []string
	beside := 0 // about what it takes to name them
	for obj := range hits.After("") {
		if !o.object(obj, &p, "") {
			faulty = append(faulty, obj.Key())
			beside += naming(obj.Key(), "")
		}
		if o.len()+beside > s.cfg.MaxResponseBytes {
			return nil, s.tooLarge("use ByIndex, which has pages")
		}
	}
	for _, v := range values {
		o.element(2, readable(v))
	}
	o.bounds(3, 5, snap)
	for _, key := range faulty {
		o.element(4, key)
	}
	if u := c.unindexed(snap, req.GetIndex()); u != nil {
		o.unindexed([]*indexv1.UnindexedObjects{u})
	}
	return o, nil
}
