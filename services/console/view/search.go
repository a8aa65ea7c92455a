package view

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/why"
	"github.com/deltaplane/deltaplane/internal/rpc"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Bounds of a search.
const (
	mostFound    = 50
	mostSearched = 200     // collections in which objects are looked for, and queues in which keys are
	mostListed   = 5_000   // objects of a collection whose keys are listed
	mostScanned  = 100_000 // keys that are listed
	searchers    = 16
)

// search is one search under way.
type search struct {
	h    *Hub
	text string
	only string // the resource whose objects are asked for; empty for all

	wg   sync.WaitGroup
	free chan struct{}

	mu     sync.Mutex
	found  []*consolev1.Found  // guarded by mu
	silent []*consolev1.Silent // guarded by mu
	denied error               // guarded by mu: a part does not know the caller's token
}

// Search finds what has a text in its name. The hub need not be one that is followed.
func (h *Hub) Search(ctx context.Context, text string) (*consolev1.SearchResponse, error) {
	text = strings.TrimSpace(text)
	if text == "" || len(text) > maxText {
		return nil, rpc.InvalidArgument("text", "want 1 to 256 bytes")
	}
	s := &search{h: h, text: text, free: make(chan struct{}, searchers)}
	if only, key, two := strings.Cut(text, " "); two {
		s.only, s.text = only, strings.TrimSpace(key)
	}
	s.wg.Go(func() { s.collections(ctx) })
	if s.only == "" {
		s.wg.Go(func() { s.queues(ctx) })
	}
	s.wg.Wait()
	if s.denied != nil && len(s.found) == 0 {
		return nil, s.denied
	}
	slices.SortFunc(s.found, func(x, y *consolev1.Found) int {
		return cmp.Or(cmp.Compare(s.rank(x), s.rank(y)), cmp.Compare(x.GetKind(), y.GetKind()),
			cmp.Compare(x.GetCollection()+x.GetQueue(), y.GetCollection()+y.GetQueue()), cmp.Compare(x.GetKey(), y.GetKey()))
	})
	more := len(s.found) > mostFound
	return &consolev1.SearchResponse{Found: s.found[:min(len(s.found), mostFound)], Silent: s.silent, More: more}, nil
}

// rank is how far a find is from what was asked for.
func (s *search) rank(f *consolev1.Found) int {
	name := cmp.Or(f.GetKey(), f.GetQueue(), f.GetCollection())
	switch {
	case name == s.text:
		return 0
	case strings.HasSuffix(name, "/"+s.text):
		return 1
	case strings.HasPrefix(name, s.text), strings.Contains(name, "/"+s.text):
		return 2
	}
	return 3
}

func (s *search) add(f *consolev1.Found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found = append(s.found, f)
}

func (s *search) miss(part string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rpc.Code(err) == codes.Unauthenticated {
		s.denied = err
	}
	if !slices.ContainsFunc(s.silent, func(one *consolev1.Silent) bool { return one.GetPart() == part }) {
		s.silent = append(s.silent, silent(part, err))
	}
}

// each asks something, not too much at a time.
func (s *search) each(ask func()) {
	s.wg.Go(func() {
		s.free <- struct{}{}
		defer func() { <-s.free }()
		ask()
	})
}

func (s *search) collections(ctx context.Context) {
	answer, err := s.h.listCollections(ctx)
	if err != nil {
		s.miss(why.PartIndex, err)
		return
	}
	var all []*indexv1.CollectionStatus // whose objects are searched
	for _, c := range answer.GetCollections() {
		named := called(c, cmp.Or(s.only, s.text), s.only == "")
		if s.only == "" && named {
			s.add(&consolev1.Found{Kind: consolev1.FoundKind_FOUND_KIND_COLLECTION, Collection: c.GetCollection()})
		}
		if s.only == "" || named {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(x, y *indexv1.CollectionStatus) int { return cmp.Compare(x.GetObjects(), y.GetObjects()) })
	s.omit(len(all)-mostSearched, "collections", "which have the most objects: write the resource before the key")
	left := int64(mostScanned)
	short := 0
	for _, c := range all[:min(len(all), mostSearched)] {
		n := c.GetObjects()
		if n <= mostListed && n <= left {
			left -= n
			s.each(func() { s.list(ctx, c) })
			continue
		}
		if n <= mostListed {
			short++
		}
		s.each(func() { s.get(ctx, c) })
	}
	s.omit(short, "collections for a part of a key", "others have as many keys as a search reads: write the resource before the key")
}

// omit says of how many a search looks at nothing further.
func (s *search) omit(n int, of, because string) {
	if n <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = append(s.silent, &consolev1.Silent{Part: fmt.Sprintf("%d %s", n, of), Why: because})
}

// called reports whether a collection is called by a text, or by one that contains it.
func called(c *indexv1.CollectionStatus, text string, part bool) bool {
	_, resource, _ := strings.Cut(c.GetCollection(), "/")
	if c.GetCollection() == text || resource == text || c.GetResource() == text || slices.Contains(c.GetNames(), strings.ToLower(text)) {
		return true
	}
	return part && strings.Contains(c.GetCollection(), strings.ToLower(text))
}

// list looks at all keys of a collection.
func (s *search) list(ctx context.Context, c *indexv1.CollectionStatus) {
	answer, err := s.h.indexes.List(ctx, &indexv1.ListRequest{Collection: c.GetCollection(), PageSize: mostListed, View: indexv1.View_VIEW_KEYS, VisibleOnly: true})
	if err != nil {
		s.missed(c, err)
		return
	}
	most := mostFound + 1 // one more tells that there are more
	for _, o := range answer.GetObjects() {
		if strings.Contains(o.GetKey(), s.text) {
			s.object(c, o.GetKey())
			if most--; most == 0 {
				return
			}
		}
	}
}

// get looks for one key of a collection.
func (s *search) get(ctx context.Context, c *indexv1.CollectionStatus) {
	if _, err := delta.ParseKey(s.text); err != nil {
		return
	}
	answer, err := s.h.indexes.BatchGet(ctx, &indexv1.BatchGetRequest{Collection: c.GetCollection(), Keys: []string{s.text}, View: indexv1.View_VIEW_KEYS})
	if err != nil {
		s.missed(c, err)
		return
	}
	for _, o := range answer.GetObjects() {
		s.object(c, o.GetKey())
	}
}

// missed says that a collection could not be searched. What the caller may not see is not there.
func (s *search) missed(c *indexv1.CollectionStatus, err error) {
	switch rpc.Reason(err) {
	case "COLLECTION_NOT_FOUND", "PERMISSION_DENIED", "INVALID_ARGUMENT":
	default:
		s.miss(c.GetCollection(), err)
	}
}

func (s *search) object(c *indexv1.CollectionStatus, key string) {
	kind := consolev1.FoundKind_FOUND_KIND_OBJECT
	if c.GetGroup() == "" && c.GetResource() == "nodes" {
		kind = consolev1.FoundKind_FOUND_KIND_NODE
	}
	s.add(&consolev1.Found{Kind: kind, Collection: c.GetCollection(), Key: key})
}

func (s *search) queues(ctx context.Context) {
	answer, err := s.h.listQueues(ctx)
	if err != nil {
		s.miss(why.PartQueue, err)
		return
	}
	s.omit(len(answer.GetQueues())-mostSearched, "queues", "for the key: there are too many")
	for i, q := range answer.GetQueues() {
		name := q.GetConfig().GetName()
		if strings.Contains(name, s.text) {
			s.add(&consolev1.Found{Kind: consolev1.FoundKind_FOUND_KIND_QUEUE, Queue: name})
		}
		if i >= mostSearched {
			continue
		}
		s.each(func() {
			answer, err := s.h.queues.Inspect(ctx, &queuev1.InspectRequest{Queue: name, Key: s.text})
			switch {
			case err != nil:
				s.miss(why.PartQueue, err)
			case known(answer.GetItem()):
				s.add(&consolev1.Found{
					Kind: consolev1.FoundKind_FOUND_KIND_KEY, Queue: name, Key: s.text, Detail: word(answer.GetItem().GetState().String(), "STATE_"),
				})
			}
		})
	}
}
