package main

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// catalog is an index that notes what it is asked for and has nothing.
type catalog struct {
	indexv1.UnimplementedIndexServiceServer
	mu    sync.Mutex
	asked []string
}

func (c *catalog) note(words ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, strings.Join(words, " "))
}

func (c *catalog) take() (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, c.asked = c.asked, nil
	return all
}

func (*catalog) ListCollections(context.Context, *indexv1.ListCollectionsRequest) (*indexv1.ListCollectionsResponse, error) {
	status := func(group, resource string, scope indexv1.KeyScope) *indexv1.CollectionStatus {
		return &indexv1.CollectionStatus{
			Collection: strings.TrimSuffix("dev/"+resource+".v1."+group, "."), Cluster: "dev", Group: group, Version: "v1", Resource: resource, Scope: scope,
		}
	}
	custom := func(group, resource string, names ...string) *indexv1.CollectionStatus {
		c := status(group, resource, indexv1.KeyScope_KEY_SCOPE_NAMESPACED)
		c.Names = names
		return c
	}
	const namespaced, cluster = indexv1.KeyScope_KEY_SCOPE_NAMESPACED, indexv1.KeyScope_KEY_SCOPE_CLUSTER
	return &indexv1.ListCollectionsResponse{Collections: []*indexv1.CollectionStatus{
		status("", "pods", namespaced), status("batch", "jobs", namespaced), status("", "nodes", cluster),
		status("networking.k8s.io", "networkpolicies", namespaced), status("example.com", "ponies", indexv1.KeyScope_KEY_SCOPE_UNSPECIFIED),
		status("a.example.com", "twin", namespaced), status("a.example.com", "twins", namespaced), status("b.example.com", "boxes", namespaced), status("c.example.com", "boxs", namespaced),
		custom("example.com", "mice", "rodent", "mouse", "mx", "twins"), custom("a.example.com", "rats", "rat", "rodent"),
		custom("", "services", "service", "svc"), custom("serving.example.com", "services", "kservice", "ksvc"),
		custom("b.example.com", "tales", "tale", "te"), custom("c.example.com", "tales", "tale", "te"), custom("d.example.com", "tales", "story"),
	}}, nil
}

func (c *catalog) Get(_ context.Context, r *indexv1.GetRequest) (*indexv1.GetResponse, error) {
	c.note("get", r.GetCollection(), r.GetKey())
	return nil, rpc.Status(context.Canceled, []rpc.Rule{{Is: context.Canceled, Code: codes.NotFound, Reason: "KEY_NOT_FOUND"}})
}

func (c *catalog) List(_ context.Context, r *indexv1.ListRequest) (*indexv1.ListResponse, error) {
	c.note("list", r.GetCollection(), strings.Join(append(r.GetNamespaces(), r.GetNamespace()), ","), r.GetFieldSelector())
	return &indexv1.ListResponse{}, nil
}

func (c *catalog) Watch(r *indexv1.WatchRequest, _ indexv1.IndexService_WatchServer) error {
	c.note("watch", r.GetCollection(), strings.Join(r.GetNamespaces(), ","), r.GetFieldSelector())
	return rpc.InvalidArgument("collection", "it is over")
}

// servedAt starts a gRPC server and returns its address.
func servedAt(t *testing.T, register func(*grpc.Server)) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	register(srv)
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(srv.Stop)
	return lis.Addr().String()
}

func TestCollectionsNamespacesAndKeysAreTakenAsKubectlTakesThem(t *testing.T) {
	t.Parallel()
	var c catalog
	addr := servedAt(t, func(s *grpc.Server) { indexv1.RegisterIndexServiceServer(s, &c) })
	for line, want := range map[string]string{
		"get pods -n a -n b":                        "list pods a,b, ",
		"get pods -n a,b":                           "list pods a,b, ",
		"get pods -n a -A":                          "list pods  ",
		"get po --field-selector metadata.name=web": "list pods  metadata.name=web",
		"get pod":                              "list pods  ",
		"get Pod":                              "list pods  ",
		"get dev/pod":                          "list dev/pods  ",
		"get pod.v1":                           "list pods.v1  ",
		"get job.batch":                        "list jobs.batch  ",
		"get netpol":                           "list networkpolicies  ",
		"get networkpolicy":                    "list networkpolicies  ",
		"get pony":                             "list ponies  ",
		"get twin":                             "list twin  ",
		"get twins":                            "list twins  ",
		"get mx":                               "list mice  ",
		"get Mouse":                            "list mice  ",
		"get mx.example.com":                   "list mice.example.com  ",
		"get dev/mx":                           "list dev/mice  ",
		"get mx m -n a":                        "get mice a/m",
		"get mouse m":                          "get mice default/m",
		"get rodent.a.example.com":             "list rats.a.example.com  ",
		"get tale.d.example.com":               "list tale.d.example.com  ",
		"get svc":                              "list dev/services.v1  ",
		"get ksvc":                             "list dev/services.v1.serving.example.com  ",
		"get te.b.example.com":                 "list tales.b.example.com  ",
		"get story":                            "list dev/tales.v1.d.example.com  ",
		"get mx.other":                         "list mx.other  ",
		"get no -n a":                          "list nodes  ",
		"get other/pod":                        "list other/pod  ",
		"get pod.batch":                        "list pod.batch  ",
		"get job hello":                        "get jobs default/hello",
		"get job hello -n a":                   "get jobs a/hello",
		"get job a/hello -n a":                 "get jobs a/hello",
		"get job a/hello":                      "get jobs a/hello",
		"get node n1 -n a":                     "get nodes n1",
		"get pony p":                           "get ponies p",
		"get pony p -n a":                      "get ponies a/p",
		"watch po -n a,b --field-selector x=y": "watch pods a,b x=y",
	} {
		_, errs, code := command(t.Context(), "", append(strings.Fields(line), "--index-url", addr)...)
		if got := c.take(); !slices.Equal(got, []string{want}) {
			t.Errorf("%s asks for %q, want %q (exit %d, %s)", line, got, want, code, errs)
		}
	}
	for line, want := range map[string]string{
		"get pods hello -n a -n b":   "one namespace",
		"get pods a/hello -n b":      "two namespaces",
		"get pods hello -A":          "one namespace",
		"get pods -n a,,b":           "empty",
		"get pods hello -l a=b":      "excludes",
		"get box":                    "may be dev/boxes.v1.b.example.com or dev/boxs.v1.c.example.com",
		"get rodent":                 "may be dev/mice.v1.example.com or dev/rats.v1.a.example.com",
		"get te":                     "may be dev/tales.v1.b.example.com or dev/tales.v1.c.example.com",
		"watch pods hello -n a,b":    "one namespace",
		"get pods x --index a=b":     "excludes",
		"get p x --field-selector x": "excludes",
	} {
		if _, errs, code := command(t.Context(), "", append(strings.Fields(line), "--index-url", addr)...); code != cli.ExitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: exit %d, %s; want %q", line, code, errs, want)
		}
	}
	if _, errs, code := command(t.Context(), "", "get", "job", "hello", "--index-url", addr); code != cli.ExitNotFound || !strings.Contains(errs, "looked for in default") {
		t.Errorf("a miss in the namespace that nobody named: exit %d, %s", code, errs)
	}
	if _, errs, _ := command(t.Context(), "", "get", "job", "a/hello", "--index-url", addr); strings.Contains(errs, "looked for in default") {
		t.Errorf("a miss in the namespace that was named: %s", errs)
	}
}

const widgets = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: gadget, kind: Widget, shortNames: [wd]}
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}},
       additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}, {name: Note, type: string, jsonPath: .spec.note, priority: 1}]}
`

const widget = `apiVersion: example.com/v1
kind: Widget
metadata: {name: one}
spec: {size: 3, note: none}
`

// The names of a definition go from the API server's discovery by the log and the index to the
// command, and its columns where definitions are mirrored.
func TestACustomResourceIsTakenByItsShortNameAndShownByItsColumns(t *testing.T) {
	t.Parallel()
	r := startUp(t)
	for _, manifest := range []string{widgets, widget} {
		if _, errs, code := command(t.Context(), manifest, append([]string{"apply", "-f", "-"}, r.api...)...); code != cli.ExitOK {
			t.Fatalf("apply: %s", errs)
		}
	}
	if _, errs, code := command(t.Context(), "", append([]string{"reflection", "add", "widgets.v1.example.com"}, r.ask[4:]...)...); code != cli.ExitOK {
		t.Fatalf("reflection add: %s", errs)
	}
	get := func(word string) string {
		out, _, _ := command(t.Context(), "", append([]string{"get", word, "-o", "name"}, r.ask...)...)
		return out
	}
	until(t, func() bool { return get("widgets") != "" })
	for _, word := range []string{"wd", "WD", "gadget", "widget", "Widget", "wd.example.com"} {
		if got := get(word); !strings.HasPrefix(got, "widgets") || !strings.HasSuffix(got, "default/one\n") {
			t.Errorf("get %s printed %q", word, got)
		}
	}
	if _, errs, code := command(t.Context(), "", append([]string{"get", "gadge"}, r.ask...)...); code != cli.ExitNotFound {
		t.Errorf("a word that is no name of it: exit %d, %s", code, errs)
	}
	shown := func(args ...string) string {
		out, _, _ := command(t.Context(), "", append(append([]string{"get", "widgets"}, args...), r.ask...)...)
		return strings.Join(strings.Fields(out), " ")
	}
	if got := shown(); !strings.HasPrefix(got, "NAMESPACE NAME AGE default one ") {
		t.Errorf("without its definition it is shown as %q", got)
	}
	if _, errs, code := command(t.Context(), "", append([]string{"reflection", "add", "customresourcedefinitions"}, r.ask[4:]...)...); code != cli.ExitOK {
		t.Fatalf("reflection add: %s", errs)
	}
	until(t, func() bool { return shown() == "NAMESPACE NAME SIZE default one 3" })
	if got := shown("-o", "wide"); !strings.HasPrefix(got, "NAMESPACE NAME SIZE NOTE RESOURCE-VERSION UID default one 3 none ") {
		t.Errorf("wide it is shown as %q", got)
	}
}
