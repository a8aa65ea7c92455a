// Package deltaplane holds no code, only tests of the whole repository: who may import whom
// (ARCHITECTURE.md, "Layout"), what the client exports, and which words sources use.
package deltaplane

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/deltaplane/deltaplane/"

// layer is a folder and what its packages may import directly, besides themselves. Paths ending in
// a slash mean everything below.
type layer struct {
	folder string
	why    string
	// ours are folders of this module.
	ours []string
	// others are paths outside the module and the standard library; nil permits all.
	others []string
	// tests holds the rule for the package's tests as well.
	tests bool
}

var layers = []layer{
	{
		folder: "core/",
		why:    "core is rules only, so that every rule can be read and tested with no broker in sight",
		ours:   []string{"core/"},
		others: []string{},
	},
	{
		folder: "proto/",
		why:    "contracts depend on nothing of ours, so that any language and any service can use them alone",
		ours:   []string{"proto/"},
		others: []string{"google.golang.org/protobuf/", "google.golang.org/grpc", "google.golang.org/grpc/", "google.golang.org/genproto/"},
		tests:  true,
	},
	devclusterRoom("serve", "write", "read", "store", "kinds"),
	devclusterRoom("control", "write", "read", "store", "kinds"),
	devclusterRoom("write", "store", "kinds"),
	devclusterRoom("read", "store", "kinds"),
	{
		folder: "internal/devcluster/store",
		why:    "the dev cluster's store keeps objects and a log of them; it knows no request",
		ours:   []string{"core/", "internal/devcluster/kinds", "internal/dirlock", "internal/journal"},
	},
	devclusterRoom("kinds"),
	{
		folder: "internal/devcluster",
		why:    "the dev cluster stands for somebody else's API server: it knows nothing of us but plumbing",
		ours:   []string{"core/", "internal/"},
	},
	streamRoom("read", "kv", "link"),
	streamRoom("lease", "kv", "link"),
	streamRoom("write", "link"),
	streamRoom("kv", "link"),
	streamRoom("link"),
	{
		folder: "internal/",
		why:    "adapters know rules and contracts, never the services built on them",
		ours:   []string{"core/", "internal/", "proto/"},
	},
	{
		folder: "client/testing",
		why:    "an environment for tests has the services that a controller calls, and no controller",
		ours:   []string{"client/", "core/", "internal/", "proto/", "services/indexer", "services/queue", "services/reflector"},
	},
	{
		folder: "client/",
		why:    "the SDK is for people outside: it may use what they could vendor, never a service",
		ours:   []string{"client/", "core/", "internal/", "proto/"},
	},
	{
		folder: "services/controllers/",
		why:    "controllers are users of the SDK; they reach other services through it, over the wire",
		ours:   []string{"client/", "core/", "internal/", "proto/", "services/controllers/"},
	},
	{
		folder: "services/nodeagent/",
		why:    "the node agent is a user of the SDK as well: it knows no controller, and reaches services over the wire",
		ours:   []string{"client/", "core/", "internal/", "proto/", "services/nodeagent/"},
	},
	{
		folder: "services/gateway/",
		why:    "the gateway is a user of the SDK: it reaches the index through it, over the wire",
		ours:   []string{"client/", "core/", "internal/", "proto/", "services/gateway/"},
	},
	{
		folder: "services/console/caller",
		why:    "calls as a caller know who that is, and not what is shown",
		ours:   []string{"core/", "internal/", "proto/"},
	},
	{
		folder: "services/console/view",
		why:    "what is shown is asked for through the caller's own connections, whatever shows it",
		ours:   []string{"client/", "core/", "internal/", "proto/"},
	},
	{
		folder: "services/console/session",
		why:    "a session keeps views of one caller, and knows no request",
		ours:   []string{"core/", "internal/", "proto/", "services/console/view"},
	},
	{
		folder: "services/console/",
		why:    "the console is a user of the SDK: it reaches the other services over the wire, as its callers",
		ours:   []string{"client/", "core/", "internal/", "proto/", "services/console/"},
	},
	{folder: "services/reflector", why: wire, ours: []string{"core/", "internal/", "proto/", "services/reflector/"}},
	indexerRoom("wire", "read", "watch", "grant", "consistency", "filter", "follow", "define", "definition", "message", "limit", "fault"),
	indexerRoom("watch", "grant", "consistency", "filter", "follow", "define", "message", "limit", "fault"),
	indexerRoom("read", "grant", "consistency", "filter", "follow", "extract", "message", "fault"),
	indexerRoom("grant", "define", "fault"),
	indexerRoom("consistency", "follow", "fault"),
	indexerRoom("filter", "follow", "define"),
	indexerRoom("follow", "define", "extract", "checkpoint", "payload", "fault"),
	indexerRoom("define", "definition", "extract", "fault"),
	indexerRoom("extract", "definition"),
	indexerRoom("definition"),
	indexerRoom("checkpoint", "pages"),
	indexerRoom("payload", "pages"),
	indexerRoom("message", "limit"),
	indexerRoom("limit", "fault"),
	indexerRoom("fault"),
	indexerRoom("pages"),
	{folder: "services/indexer", why: wire, ours: []string{"core/", "internal/", "proto/", "services/indexer/"}},
	// The queue's packages stand along its flow. The first folder that fits counts.
	{folder: "services/queue/engine", why: "what is asked of a store is written in the rules' words alone", ours: []string{"core/"}},
	{folder: "services/queue/enginetest", why: store, ours: []string{"core/", "internal/", "services/queue/engine"}},
	{folder: "services/queue/memory", why: store, ours: []string{"core/", "internal/", "services/queue/engine"}},
	{folder: "services/queue/redis", why: store, ours: []string{"core/", "internal/", "services/queue/engine"}},
	{
		folder: "services/queue/wire",
		why:    "what reads requests and writes answers knows no queue and no session",
		ours:   []string{"core/", "internal/rpc", "proto/", "services/queue/engine"},
	},
	{folder: "services/queue/metrics", why: leaf, ours: []string{"core/", "internal/telemetry/series", "internal/tracing", "services/queue/engine"}},
	{folder: "services/queue/history", why: leaf, ours: []string{"core/", "proto/", "services/queue/wire"}},
	{
		folder: "services/queue/transaction",
		why:    "transactions gather calls and waiters: functions, not streams and sessions, say who they are for",
		ours: []string{
			"core/", "internal/rpc", "internal/telemetry",
			"services/queue/engine", "services/queue/history", "services/queue/metrics", "services/queue/wire",
		},
	},
	{
		folder: "services/queue/session",
		why:    "a session knows streams by the interfaces it declares",
		ours:   []string{"core/", "proto/", "services/queue/engine", "services/queue/transaction", "services/queue/wire"},
	},
	{folder: "services/queue/work", why: answers, ours: queuePackages("services/queue/metrics", "services/queue/session")},
	{folder: "services/queue/produce", why: answers, ours: queuePackages("services/queue/metrics", "services/queue/session")},
	{folder: "services/queue/admin", why: answers, ours: queuePackages("services/queue/metrics", "services/queue/history")},
	{folder: "services/queue/backoff", why: answers, ours: queuePackages()},
	{folder: "services/queue/maintain", why: "the care of the store answers no caller", ours: []string{"core/", "internal/telemetry", "services/queue/engine", "services/queue/transaction"}},
	{folder: "services/queue", why: wire, ours: []string{"core/", "internal/", "proto/", "services/queue/"}},
	{folder: "cmd/", why: "cmd wires everything"},
	{folder: "bench", why: "benchmarks compare everything"},
	{folder: "test/", why: "whole-system tests speak the contracts", ours: []string{"client/", "internal/", "proto/", "test/", "core/"}},
	{folder: "examples/", why: "an example uses what a user has", ours: []string{"client/", "proto/", "examples/"}},
}

// devclusterRoom is a package of the dev cluster, and which of the others it may import.
func devclusterRoom(name string, others ...string) layer {
	l := layer{
		folder: "internal/devcluster/" + name,
		why:    "the dev cluster's packages stand along the way of a request: what is nearer to the objects knows nothing of who asks for them",
		ours:   []string{"core/"},
	}
	for _, other := range others {
		l.ours = append(l.ours, "internal/devcluster/"+other)
	}
	return l
}

// streamRoom is a package of the log, and which of the others it may import.
func streamRoom(name string, others ...string) layer {
	l := layer{
		folder: "internal/stream/" + name,
		why:    "what reads the log, what writes it and who may write meet in the connection and in the log alone",
		ours:   []string{"core/", "internal/attempt", "internal/seal"},
	}
	for _, other := range others {
		l.ours = append(l.ours, "internal/stream/"+other)
	}
	return l
}

// indexerRoom is a package of the indexer, and which of the others it may import.
func indexerRoom(name string, others ...string) layer {
	l := layer{
		folder: "services/indexer/" + name,
		why:    "the indexer's packages stand along the way of a delta and of a call: what is nearer to the log knows nothing of what reads it",
		ours:   []string{"core/", "internal/", "proto/"},
	}
	for _, other := range others {
		l.ours = append(l.ours, "services/indexer/"+other)
	}
	return l
}

const (
	store   = "a store knows the rules and what is asked of it, not who asks"
	leaf    = "what is counted and remembered is given; it asks nobody"
	answers = "packages that answer callers meet in transactions and sessions, not one another"
)

// queuePackages are what every package of the queue that answers callers may import, and more.
func queuePackages(more ...string) []string {
	return append([]string{"core/", "internal/rpc", "internal/telemetry", "proto/", "services/queue/engine", "services/queue/transaction", "services/queue/wire"}, more...)
}

const wire = "services meet only through proto, so that each can be deployed, replaced and restarted alone"

// A door is a library and the only folders that may import it.
type door struct {
	library string
	folders []string
	why     string
}

var doors = []door{
	{"github.com/nats-io/", []string{"internal/stream", "internal/embedded", "client/deltalog", "bench"}, "NATS has one door, so that the log's five rules live in one place; client/deltalog takes the options of a connection"},
	{"github.com/redis/", []string{"services/queue/redis", "internal/embedded/embeddedtest", "bench"}, "Redis has one door: its scripts are the queue's atomicity"},
	{"k8s.io/client-go/", []string{"internal/kube", "internal/table", "cmd/deltaplane/internal/show", "bench"}, "the API server has one door: payloads pass as bytes; tables take its JSONPath"},
	// apimachinery is not listed: its selectors are the grammar that the index promises.
	{"k8s.io/api/", []string{"internal/kube", "internal/devcluster", "services/reflector", "services/controllers", "services/nodeagent", "cmd", "test", "bench"}, "Kubernetes types stay with those who speak to Kubernetes: an index and a queue hold anything"},
	{"k8s.io/cri-api/", []string{"internal/cri", "internal/criruntime", "services/nodeagent", "test", "bench"}, "container runtimes are spoken to by the node agent alone"},
	{"github.com/spf13/", []string{"cmd"}, "only cmd reads flags"},
	{"github.com/knadh/koanf", []string{"cmd"}, "only cmd reads configuration files"},
	{"connectrpc.com/", []string{"services/console"}, "Connect is what browsers speak: services and SDKs speak gRPC"},
	{"github.com/stretchr/testify", nil, "plain testing and go-cmp"},
}

// inner are packages of ours that only some folders may import.
var inner = []door{
	{"internal/devcluster/", []string{"internal/devcluster"}, "the dev cluster's packages are its own: everybody else has Config, New and Run"},
	{"internal/stream/", []string{"internal/stream"}, "the log's packages are its own: everybody else has a Conn"},
	{"services/indexer/", []string{"services/indexer"}, "the indexer's packages are its own: everybody else has Config, New and Run"},
}

// forbiddenInCore are standard packages that would bring I/O, logging or a clock.
var forbiddenInCore = []string{"log", "log/slog", "net", "net/http", "os", "os/exec", "io/fs", "database/sql", "syscall", "testing"}

// embedded are servers that embeddedUsers may start in our process.
var (
	embedded      = []string{"internal/embedded", "internal/criruntime", "internal/devcluster"}
	embeddedUsers = append([]string{"cmd/", "bench", "test/"}, embedded...)
)

type goPackage struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func TestEveryPackageImportsOnlyWhatItsLayerMay(t *testing.T) {
	t.Parallel()
	packages := listPackages(t)
	if len(packages) < 10 {
		t.Fatalf("go list found %d packages: the test looks at the wrong folder", len(packages))
	}
	for _, p := range packages {
		folder := strings.TrimPrefix(p.ImportPath, module)
		if p.ImportPath+"/" == module {
			continue
		}
		i := slices.IndexFunc(layers, func(l layer) bool { return within(folder, l.folder) })
		if i < 0 {
			t.Errorf("%s belongs to no layer: say in layers_test.go what it may import", folder)
			continue
		}
		l := layers[i]
		imports := p.Imports
		if l.tests {
			imports = slices.Concat(imports, p.TestImports, p.XTestImports)
		}
		for _, imported := range imports {
			for _, fault := range faults(l, folder, imported) {
				t.Errorf("%s imports %s: %s", folder, imported, fault)
			}
		}
	}
}

// faults says which rules an import breaks.
func faults(l layer, folder, imported string) []string {
	var out []string
	ours, isOurs := strings.CutPrefix(imported, module)
	switch {
	case isOurs:
		allowed := l.ours == nil || slices.ContainsFunc(l.ours, func(f string) bool { return within(ours, f) })
		if !allowed {
			out = append(out, l.why)
		}
		if slices.ContainsFunc(embedded, func(f string) bool { return within(ours, f) }) && !isTestFolder(folder) && !slices.ContainsFunc(embeddedUsers, func(f string) bool { return within(folder, f) }) {
			out = append(out, "servers are started by cmd and by tests; everybody else is given an address")
		}
		for _, d := range inner {
			if strings.HasPrefix(ours, d.library) && !slices.ContainsFunc(d.folders, func(f string) bool { return within(folder, f) }) {
				out = append(out, d.why)
			}
		}
		if isTestFolder(ours) && !isTestFolder(folder) && !within(folder, "test/") {
			out = append(out, "packages that help tests are for tests")
		}
	case isStandard(imported):
		if within(folder, "core/") && !isTestFolder(folder) && slices.Contains(forbiddenInCore, imported) {
			out = append(out, "core does no I/O and no logging")
		}
	default:
		if l.others != nil && !slices.ContainsFunc(l.others, func(f string) bool { return within(imported, f) }) {
			out = append(out, l.why)
		}
		for _, d := range doors {
			if strings.HasPrefix(imported+"/", d.library) && !slices.ContainsFunc(d.folders, func(f string) bool { return within(folder, f) }) {
				out = append(out, d.why)
			}
		}
	}
	return out
}

func TestTheRulesCatchWhatTheyForbid(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		folder, imported string
		allowed          bool
	}{
		{"core/store", "sort", true},
		{"core/store", module + "core/delta", true},
		{"core/store", module + "internal/rpc", false},
		{"core/store", "log/slog", false},
		{"core/store", "google.golang.org/grpc", false},
		{"internal/rpc", module + "services/queue", false},
		{"internal/kube", "k8s.io/client-go/rest", true},
		{"internal/rpc", "k8s.io/client-go/rest", false},
		{"internal/devcluster", module + "internal/devcluster/serve", true},
		{"internal/devcluster/serve", module + "internal/devcluster/write", true},
		{"internal/devcluster/serve", module + "internal/devcluster/control", false},
		{"internal/devcluster/write", module + "internal/devcluster/serve", false},
		{"internal/devcluster/store", module + "internal/devcluster/write", false},
		{"internal/devcluster/store", module + "internal/journal", true},
		{"internal/devcluster/kinds", module + "internal/devcluster/store", false},
		{"cmd/deltaplane", module + "internal/devcluster/serve", false},
		{"internal/stream", module + "internal/stream/read", true},
		{"internal/stream/read", module + "internal/stream/kv", true},
		{"internal/stream/read", module + "internal/stream/write", false},
		{"internal/stream/write", module + "internal/stream/lease", false},
		{"internal/stream/kv", module + "internal/stream/read", false},
		{"internal/stream/link", module + "internal/stream/kv", false},
		{"internal/stream/link", "github.com/nats-io/nats.go", true},
		{"services/reflector", module + "internal/stream", true},
		{"services/reflector", module + "internal/stream/write", false},
		{"services/queue", module + "services/indexer", false},
		{"services/queue", module + "services/queue/redis", true},
		{"services/queue", "github.com/redis/go-redis/v9", false},
		{"services/queue/redis", "github.com/redis/go-redis/v9", true},
		{"services/queue/work", module + "services/queue/session", true},
		{"services/queue/session", module + "services/queue/work", false},
		{"services/queue/transaction", module + "services/queue/session", false},
		{"services/queue/transaction", module + "services/queue/engine", true},
		{"services/queue/transaction", module + "services/queue/memory", false},
		{"services/queue/admin", module + "services/queue/session", false},
		{"services/queue/produce", module + "services/queue/work", false},
		{"services/queue/wire", module + "services/queue/transaction", false},
		{"services/queue/redis", module + "services/queue/wire", false},
		{"services/indexer", "github.com/redis/go-redis/v9", false},
		{"services/indexer", "github.com/nats-io/nats.go", false},
		{"services/indexer", module + "internal/embedded", false},
		{"services/nodeagent", module + "internal/criruntime", false},
		{"services/nodeagent/nodeagenttest", module + "internal/criruntime", true},
		{"services/indexer", module + "services/indexer/wire", true},
		{"services/indexer/wire", module + "services/indexer/read", true},
		{"services/indexer/read", module + "services/indexer/wire", false},
		{"services/indexer/read", module + "services/indexer/watch", false},
		{"services/indexer/follow", module + "services/indexer/define", true},
		{"services/indexer/define", module + "services/indexer/follow", false},
		{"services/indexer/follow", module + "services/indexer", false},
		{"services/indexer/message", module + "services/indexer/follow", false},
		{"cmd/deltaplane", module + "services/indexer", true},
		{"cmd/deltaplane", module + "services/indexer/follow", false},
		{"services/indexer", "k8s.io/api/core/v1", false},
		{"services/indexer", "k8s.io/apimachinery/pkg/labels", true},
		{"services/nodeagent", module + "services/nodeagent/pleg", true},
		{"services/nodeagent", module + "services/controllers", false},
		{"services/controllers", module + "services/nodeagent", false},
		{"services/controllers", module + "services/controllers/job", true},
		{"services/controllers/job", module + "services/queue", false},
		{"client", module + "services/queue", false},
		{"client/testing", module + "services/queue", true},
		{"client/testing", module + "services/indexer/follow", false},
		{"client/testing", module + "services/controllers", false},
		{"client/testing", module + "internal/embedded", true},
		{"client/controller", module + "client/testing", false},
		{"services/controllers", module + "client/testing", false},
		{"cmd/deltaplane", module + "internal/embedded", true},
		{"cmd/deltaplane", module + "core/store/storetest", false},
		{"examples/go", module + "internal/rpc", false},
	} {
		i := slices.IndexFunc(layers, func(l layer) bool { return within(c.folder, l.folder) })
		if i < 0 {
			t.Errorf("%s has no layer", c.folder)
			continue
		}
		if found := faults(layers[i], c.folder, c.imported); (len(found) == 0) != c.allowed {
			t.Errorf("%s importing %s: faults %q, allowed should be %v", c.folder, c.imported, found, c.allowed)
		}
	}
}

// within says whether path is folder or below it; a trailing slash changes nothing.
func within(path, folder string) bool {
	folder = strings.TrimSuffix(folder, "/")
	return path == folder || strings.HasPrefix(path, folder+"/")
}

// isTestFolder says whether a package helps tests: its name ends in "test", or is that of the one
// for users' tests.
func isTestFolder(folder string) bool {
	return strings.HasSuffix(folder, "test") || folder == "client/testing"
}

// isStandard says whether a path is the standard library's: its first element has no dot.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var packages []goPackage
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}
