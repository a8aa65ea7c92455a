package watch

import (
	"fmt"
	"strings"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/consistency"
	"github.com/deltaplane/deltaplane/services/indexer/filter"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/grant"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

func (s *Watches) newWatcher(req *indexv1.WatchRequest, stream grpc.ServerStream) (*watcher, error) {
	c, err := s.collections.Find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	w := &watcher{s: s, c: c, hub: hubOf(c), stream: stream, slow: req.GetWhenSlow(), prior: req.GetPrevious(), every: bookmarkEvery, own: make(chan struct{}, 1)}
	if w.filter, err = watchFilter(c, req); err != nil {
		return nil, err
	}
	if w.view, err = message.Project(req.GetView(), req.GetFieldMask()); err != nil {
		return nil, err
	}
	if w.least, err = consistency.ParseRevision("consistency.at_least", req.GetConsistency().GetAtLeast()); err != nil {
		return nil, err
	}
	switch {
	case req.GetConsistency().GetExact():
		return nil, rpc.InvalidArgument("consistency.exact", "is of reads: a watch tells whether its state is exact by upper and revision of its end and of bookmarks")
	case req.GetResume() != nil && req.GetSkipInitialState():
		return nil, rpc.InvalidArgument("skip_initial_state", "excludes resume")
	case len(req.GetKnown()) > 0 && req.GetSkipInitialState():
		return nil, rpc.InvalidArgument("skip_initial_state", "excludes known")
	case len(req.GetKnown()) == 0 && req.GetKnownEpoch() != 0:
		return nil, rpc.InvalidArgument("known_epoch", "is that of known, which is empty")
	case len(req.GetKnown()) > maxKnown:
		return nil, rpc.InvalidArgument("known", fmt.Sprintf("has %d keys, at most %d", len(req.GetKnown()), maxKnown))
	}
	if _, ok := indexv1.WhenSlow_name[int32(w.slow)]; !ok {
		return nil, rpc.InvalidArgument("when_slow", fmt.Sprintf("%d is not known", w.slow))
	}
	if d := req.GetBookmarkInterval(); d != nil {
		if err := d.CheckValid(); err != nil {
			return nil, rpc.InvalidField("bookmark_interval", err)
		}
		if d.AsDuration() < 0 {
			return nil, rpc.InvalidArgument("bookmark_interval", fmt.Sprintf("%v is negative", d.AsDuration()))
		}
		if d.AsDuration() > 0 {
			w.every = max(d.AsDuration(), bookmarkLeast)
		}
	}
	return w, nil
}

func watchFilter(c *follow.Collection, req *indexv1.WatchRequest) (selector, error) {
	ch := filter.Choice{Strict: req.GetStrict()}
	if err := ch.Scope(req.GetNamespace(), req.GetNamespaces()); err != nil {
		return selector{}, err
	}
	if err := ch.Selectors(req.GetLabelSelector(), req.GetFieldSelector()); err != nil {
		return selector{}, err
	}
	field, values := "index_values", req.GetIndexValues()
	if v := req.GetIndexValue(); v != "" {
		if len(values) > 0 {
			return selector{}, rpc.InvalidArgument("index_values", "excludes index_value")
		}
		values = []string{v}
	}
	switch {
	case req.GetIndex() == "" && len(values) > 0:
		return selector{}, rpc.InvalidArgument("index", "is required with index_value and index_values")
	case req.GetIndex() != "" && len(values) == 0:
		return selector{}, rpc.InvalidArgument("index_value", "is required with index, or index_values is")
	case req.GetIndex() != "":
		if err := ch.Under(req.GetIndex(), field, values); err != nil {
			return selector{}, err
		}
	}
	f, err := filter.New(c, ch)
	return selector{Filter: f, chosen: f, scope: access.Scope{All: true}}, err
}

// reachOf is what a watch covers.
func reachOf(f *selector, req *indexv1.WatchRequest) grant.Reach {
	return grant.Reach{
		Namespaces: f.Namespaces, LabelSelector: req.GetLabelSelector(), FieldSelector: req.GetFieldSelector(), Index: f.Index, Values: f.Values,
		Content: req.GetView() != indexv1.View_VIEW_KEYS,
	}
}

// groupKey names the group of the watches that ask for the same, and their view.
func groupKey(f *selector, req *indexv1.WatchRequest) (key, view string) {
	view = max(req.GetView(), indexv1.View_VIEW_FULL).String()
	if mask := req.GetFieldMask(); mask != nil {
		view = "mask " + strings.Join(mask.GetPaths(), ",")
	}
	return fmt.Sprintf("%q %q %q %q %q %q %t %t %d", f.Namespaces, req.GetLabelSelector(), req.GetFieldSelector(), f.Index, f.Values, view, f.Strict, req.GetPrevious(), f.scope.Print()), view
}
