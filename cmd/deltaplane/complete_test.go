package main

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// shelf is an index with a few objects, and a reflector of what is in it.
type shelf struct {
	reflectorv1.UnimplementedReflectorServiceServer
	indexv1.UnimplementedIndexServiceServer
	lists atomic.Int64
}

func (*shelf) ListCollections(context.Context, *indexv1.ListCollectionsRequest) (*indexv1.ListCollectionsResponse, error) {
	one := func(name, cluster, group, resource string, scope indexv1.KeyScope) *indexv1.CollectionStatus {
		return &indexv1.CollectionStatus{Collection: name, Cluster: cluster, Group: group, Version: "v1", Resource: resource, Scope: scope, Objects: 3}
	}
	const namespaced, whole = indexv1.KeyScope_KEY_SCOPE_NAMESPACED, indexv1.KeyScope_KEY_SCOPE_CLUSTER
	return &indexv1.ListCollectionsResponse{Collections: []*indexv1.CollectionStatus{
		one("dev/jobs.v1.batch", "dev", "batch", "jobs", namespaced), one("dev/nodes.v1", "dev", "", "nodes", whole),
		one("dev/pods.v1", "dev", "", "pods", namespaced), one("prod/nodes.v1", "prod", "", "nodes", whole),
	}}, nil
}

func (s *shelf) List(_ context.Context, r *indexv1.ListRequest) (*indexv1.ListResponse, error) {
	if s.lists.Add(1); r.GetView() != indexv1.View_VIEW_KEYS || r.GetPageToken() != "" || r.GetPageSize() != 1000 {
		return &indexv1.ListResponse{Objects: []*indexv1.Object{{Key: "more/than/a/page/of/keys"}}}, nil
	}
	out := &indexv1.ListResponse{NextPageToken: "more follow"}
	for _, key := range []string{"default/web-1", "default/web\x1b[31m", "shop/cart-1", "shop/web-2", "node-1"} {
		if namespaced := strings.Contains(key, "/"); namespaced == strings.HasSuffix(r.GetCollection(), "nodes") || namespaced && !strings.HasPrefix(key, r.GetNamespace()+"/") {
			continue
		}
		out.Objects = append(out.Objects, &indexv1.Object{Key: key})
	}
	return out, nil
}

func (*shelf) ListIndexers(context.Context, *indexv1.ListIndexersRequest) (*indexv1.ListIndexersResponse, error) {
	return &indexv1.ListIndexersResponse{Indexers: []*indexv1.Indexer{{Name: "namespace", Values: 2}, {Name: "node", Values: 1}}}, nil
}

func (*shelf) ListIndexFuncValues(_ context.Context, r *indexv1.ListIndexFuncValuesRequest) (*indexv1.ListIndexFuncValuesResponse, error) {
	out := &indexv1.ListIndexFuncValuesResponse{}
	for _, v := range map[string][]string{"namespace": {"default", "shop"}, "node": {"node-1"}}[r.GetIndex()] {
		if strings.HasPrefix(v, r.GetPrefix()) {
			out.Values = append(out.Values, &indexv1.IndexValue{Value: v, Keys: 2})
		}
	}
	return out, nil
}

func (*shelf) ListReflections(context.Context, *reflectorv1.ListReflectionsRequest) (*reflectorv1.ListReflectionsResponse, error) {
	return &reflectorv1.ListReflectionsResponse{
		Reflections: []*reflectorv1.Reflection{{Collection: "dev/pods.v1", State: reflectorv1.ReflectionState_REFLECTION_STATE_WATCHING}},
		Added:       []*reflectorv1.ReflectionSpec{{Cluster: "dev", Resource: "configmaps"}},
	}, nil
}

func TestArgumentsAndFlagsAreCompletedFromWhatTheServicesHave(t *testing.T) {
	t.Parallel()
	var s shelf
	addr := servedAt(t, func(srv *grpc.Server) {
		indexv1.RegisterIndexServiceServer(srv, &s)
		reflectorv1.RegisterReflectorServiceServer(srv, &s)
	})
	const spaced, unspaced = ":4", ":6"
	for line, want := range map[string]string{
		"get |p":                       "pods\t3 objects prod/nodes.v1\t3 objects " + spaced,
		"get |no":                      spaced, // the name of two, which is offered with its cluster
		"watch |prod/":                 "prod/nodes.v1\t3 objects " + spaced,
		"get pods |":                   "default/\t2 objects shop/\t2 objects web-1 " + unspaced,
		"get pods |shop/w":             "shop/web-2 " + spaced,
		"get po -n shop |":             "cart-1 web-2 " + spaced,
		"get po x |":                   spaced,
		"get dev/nodes |":              "node-1 " + spaced,
		"get nothing |":                spaced,
		"why pods |default/":           "default/web-1 " + spaced,
		"why |j":                       "jobs\t3 objects " + spaced,
		"get pods -n |s":               "shop\t2 objects " + spaced,
		"get pods --index |n":          "namespace=\t2 values node=\t1 values " + unspaced,
		"get pods --index |node=":      "node=node-1\t2 keys " + spaced,
		"index values pods |no":        "node\t1 values " + spaced,
		"index remove pods node |":     "namespace\t2 values " + spaced,
		"describe node |":              "node-1 " + spaced,
		"describe pod -n shop |c":      "cart-1 " + spaced,
		"logs |shop/c":                 "shop/cart-1 " + spaced,
		"describe node --cluster |":    "dev\t3 collections prod\t1 collections " + spaced,
		"reflection relist |":          "dev/pods.v1\twatching " + spaced,
		"reflection remove |":          "configmaps\tdev " + spaced,
		"status -o |":                  "table json " + spaced,
		"get --config /nowhere/x.y |p": spaced, // settings that cannot be read
	} {
		words, prefix, _ := strings.Cut(line, "|")
		args := append([]string{"__complete"}, strings.Fields(words)...)
		args = append(args, "--index-url", addr, "--reflector-url", addr)
		if last := args[len(args)-5]; strings.HasPrefix(last, "-") { // its value comes last
			args = append(args[:len(args)-5], "--index-url", addr, "--reflector-url", addr, last)
		}
		out, errs, code := command(t.Context(), "", append(args, prefix)...)
		got := strings.Join(strings.Split(strings.TrimSuffix(out, "\n"), "\n"), " ")
		if code != cli.ExitOK || got != want || strings.Count(errs, "\n") > 1 {
			t.Errorf("%s offers %q, want %q (exit %d, %s)", line, got, want, code, errs)
		}
	}
	s.lists.Store(0)
	if command(t.Context(), "", "__complete", "get", "pods", "--index-url", addr, "shop/"); s.lists.Load() != 1 {
		t.Errorf("a press asked for %d pages", s.lists.Load())
	}
}

// deaf notes until when callers wait, and never answers.
type deaf struct {
	indexv1.UnimplementedIndexServiceServer
	waits chan time.Duration
}

func (d deaf) ListCollections(ctx context.Context, _ *indexv1.ListCollectionsRequest) (*indexv1.ListCollectionsResponse, error) {
	until, _ := ctx.Deadline()
	d.waits <- time.Until(until)
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestAPressOfTheTabKeyWaitsASecondAtMost(t *testing.T) {
	t.Parallel()
	d := deaf{waits: make(chan time.Duration, 10)}
	addr := servedAt(t, func(srv *grpc.Server) { indexv1.RegisterIndexServiceServer(srv, d) })
	out, errs, code := command(t.Context(), "", "__complete", "get", "--index-url", addr, "")
	if wait := <-d.waits; code != cli.ExitOK || out != ":4\n" || wait > time.Second || strings.Count(errs, "\n") > 1 {
		t.Errorf("it waits %v, offers %q, says %q and exits %d", wait, out, errs, code)
	}
}

// Every place that is completed is one of a command there is, and no argument that names something
// of a service is left out.
func TestEveryCommandThatNamesThingsCompletesThem(t *testing.T) {
	t.Parallel()
	free := map[string]bool{ // what they take nobody can list, or is a file
		"deltaplane apply": true, "deltaplane delete": true, "deltaplane backup": true, "deltaplane restore": true, "deltaplane health": true,
		"deltaplane auth can-i": true, "deltaplane reflection add": true, "deltaplane certs init": true, "deltaplane help": true,
	}
	var look func(*cobra.Command)
	look = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			look(sub)
		}
		_, words, takes := strings.Cut(c.Use, " ")
		if takes && c.Runnable() && !free[c.CommandPath()] && c.Name() != "serve" && c.Name() != "certs" && c.ValidArgsFunction == nil {
			t.Errorf("%s does not complete %s", c.CommandPath(), words)
		}
	}
	root := newRoot(streams{In: strings.NewReader(""), Out: &buffer{}, Err: &buffer{}})
	look(root)
}
