package complete

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/internal/kube"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// collection offers collections: by their resources, and by their whole names where a resource is
// that of several, or a cluster is there already.
func collection(ctx context.Context, q *question) {
	answer, err := q.index().ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if err != nil {
		return
	}
	several := map[string]int{}
	for _, c := range answer.GetCollections() {
		several[c.GetResource()]++
	}
	for _, c := range answer.GetCollections() {
		about := fmt.Sprintf("%d objects", c.GetObjects())
		if several[c.GetResource()] == 1 {
			q.offer(c.GetResource(), about)
		}
		if several[c.GetResource()] > 1 || strings.Contains(q.prefix, "/") {
			q.offer(c.GetCollection(), about)
		}
	}
}

// cluster offers the clusters of which anything is mirrored.
func cluster(ctx context.Context, q *question) {
	answer, err := q.index().ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if err != nil {
		return
	}
	count := map[string]int{}
	var names []string
	for _, c := range answer.GetCollections() {
		if count[c.GetCluster()]++; count[c.GetCluster()] == 1 {
			names = append(names, c.GetCluster())
		}
	}
	slices.Sort(names)
	for _, name := range names {
		q.offer(name, fmt.Sprintf("%d collections", count[name]))
	}
}

// reflected offers the collections of the reflector.
func reflected(ctx context.Context, q *question) {
	answer, err := q.reflector().ListReflections(ctx, &reflectorv1.ListReflectionsRequest{})
	if err != nil {
		return
	}
	for _, r := range answer.GetReflections() {
		q.offer(r.GetCollection(), show.ReflectionState(r))
	}
}

// added offers the resources that were added to what is mirrored.
func added(ctx context.Context, q *question) {
	answer, err := q.reflector().ListReflections(ctx, &reflectorv1.ListReflectionsRequest{})
	if err != nil {
		return
	}
	for _, s := range answer.GetAdded() {
		q.offer(s.GetResource(), s.GetCluster())
	}
}

// of offers what from does for the first argument's collection.
func of(from func(ctx context.Context, q *question, index indexv1.IndexServiceClient, name string, c *indexv1.CollectionStatus)) source {
	return func(ctx context.Context, q *question) {
		if len(q.done) == 0 {
			return
		}
		index := q.index()
		if name, c := q.find(ctx, index, q.done[0]); c != nil {
			from(ctx, q, index, name, c)
		}
	}
}

// in offers the keys of a collection that no argument names.
func in(word string) source {
	return func(ctx context.Context, q *question) {
		index := q.index()
		if name, c := q.find(ctx, index, word); c != nil {
			keys(ctx, q, index, name, c)
		}
	}
}

// keys offers the keys of a collection: of one namespace at a time, which is named by what is there
// of the key, or by a flag. A key without one is of the namespace default.
func keys(ctx context.Context, q *question, index indexv1.IndexServiceClient, name string, c *indexv1.CollectionStatus) {
	request := &indexv1.ListRequest{Collection: name, View: indexv1.View_VIEW_KEYS, PageSize: page}
	namespace, _, whole := strings.Cut(q.prefix, "/")
	given := q.text("namespace")
	switch {
	case c.GetScope() == indexv1.KeyScope_KEY_SCOPE_CLUSTER:
	case whole:
		request.Namespace = namespace
	case given != "" && q.cmd.Flags().Changed("namespace"):
		request.Namespace = given
	default:
		for _, v := range values(ctx, index, name, "namespace", q.prefix) {
			q.offer(v.GetValue()+"/", fmt.Sprintf("%d objects", v.GetKeys()))
		}
		q.more = len(q.out) > 0
		request.Namespace = "default"
	}
	answer, err := index.List(ctx, request)
	if err != nil {
		return
	}
	for _, o := range answer.GetObjects() {
		key := o.GetKey()
		if !whole && request.GetNamespace() != "" {
			key = strings.TrimPrefix(key, request.GetNamespace()+"/")
		}
		if !slices.Contains(q.done[min(1, len(q.done)):], key) {
			q.offer(key, "")
		}
	}
}

func values(ctx context.Context, index indexv1.IndexServiceClient, collection, name, prefix string) []*indexv1.IndexValue {
	answer, err := index.ListIndexFuncValues(ctx, &indexv1.ListIndexFuncValuesRequest{Collection: collection, Index: name, Prefix: prefix, PageSize: page})
	if err != nil {
		return nil
	}
	return answer.GetValues()
}

// namespaces offers those of a collection.
func namespaces(ctx context.Context, q *question, index indexv1.IndexServiceClient, name string, _ *indexv1.CollectionStatus) {
	for _, v := range values(ctx, index, name, "namespace", q.prefix) {
		q.offer(v.GetValue(), fmt.Sprintf("%d objects", v.GetKeys()))
	}
}

// namespace offers those of the collection that is named, and else those of pods.
func namespace(ctx context.Context, q *question) {
	word := "pods"
	if len(q.done) > 0 {
		word = q.done[0]
	}
	index := q.index()
	name, c := q.find(ctx, index, word)
	if c == nil {
		name, c = q.find(ctx, index, "pods")
	}
	if c != nil {
		namespaces(ctx, q, index, name, c)
	}
}

// indexes offers the indexes of a collection.
func indexes(ctx context.Context, q *question, index indexv1.IndexServiceClient, name string, _ *indexv1.CollectionStatus) {
	answer, err := index.ListIndexers(ctx, &indexv1.ListIndexersRequest{Collection: name})
	if err != nil {
		return
	}
	for _, i := range answer.GetIndexers() {
		if !slices.Contains(q.done[1:], i.GetName()) {
			q.offer(i.GetName(), fmt.Sprintf("%d values", i.GetValues()))
		}
	}
}

// indexValue offers NAME=VALUE: the names first, and then the values of one.
func indexValue(ctx context.Context, q *question, index indexv1.IndexServiceClient, name string, _ *indexv1.CollectionStatus) {
	by, value, named := strings.Cut(q.prefix, "=")
	if named {
		for _, v := range values(ctx, index, name, by, value) {
			q.offer(by+"="+v.GetValue(), fmt.Sprintf("%d keys", v.GetKeys()))
		}
		return
	}
	answer, err := index.ListIndexers(ctx, &indexv1.ListIndexersRequest{Collection: name})
	if err != nil {
		return
	}
	for _, i := range answer.GetIndexers() {
		q.offer(i.GetName()+"=", fmt.Sprintf("%d values", i.GetValues()))
	}
	q.more = true
}

// node offers the nodes of the API server that the command writes to.
func node(ctx context.Context, q *question) {
	api, err := q.api()
	if err != nil {
		return
	}
	defer api.Close()
	list, err := api.List(ctx, kube.Resource{Version: "v1", Name: "nodes", Kind: "Node"}, kube.ListOptions{Limit: page})
	if err != nil {
		return
	}
	for _, raw := range list.Items {
		if name := nameOf(raw); !slices.Contains(q.done, name) {
			q.offer(name, "")
		}
	}
}

// queue offers queues.
func queue(ctx context.Context, q *question) {
	answer, err := q.queue().ListQueues(ctx, &queuev1.ListQueuesRequest{Prefix: q.prefix, Partial: true})
	if err != nil {
		return
	}
	for _, one := range answer.GetQueues() {
		q.offer(one.GetConfig().GetName(), "")
	}
}

// queueKeys offers keys of the first argument's queue that are in any of some states.
func queueKeys(states ...queuev1.State) source {
	return func(ctx context.Context, q *question) {
		if len(q.done) == 0 {
			return
		}
		admin := q.queue()
		for _, state := range states {
			answer, err := admin.ListItems(ctx, &queuev1.ListItemsRequest{Queue: q.done[0], State: state, PageSize: page, Partial: true})
			if err != nil {
				return
			}
			for _, i := range answer.GetItems() {
				if !slices.Contains(q.done[1:], i.GetKey()) {
					q.offer(i.GetKey(), show.StateName(i.GetState()))
				}
			}
		}
	}
}

func nameOf(object []byte) string { return gjson.GetBytes(object, "metadata.name").String() }
