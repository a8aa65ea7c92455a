package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	indexclient "github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/gateway"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// greetTimeout is how long `up` waits for everything to be served before it says what is missing.
const greetTimeout = 15 * time.Second

// greet waits until everything answers, says where it listens and what to try, and seeds the demo.
func (u *upFlags) greet(ctx context.Context, flags *pflag.FlagSet, out io.Writer, client *kube.Client, began time.Time) error {
	missing := u.await(ctx)
	if ctx.Err() != nil {
		return nil
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "Deltaplane is up, %.1f s after its start.\n\n", time.Since(began).Seconds())
	line := func(name, address, note string) { fmt.Fprintf(t, "  %s\t%s\t%s\n", name, address, note) }
	if u.ownCluster {
		line("API server (dev cluster)", client.Address(), "kubectl -s "+client.Address()+" get pods")
	} else {
		line("API server", client.Address(), "")
	}
	if u.log.config.URL != "" {
		line("NATS", withoutPassword(u.log.config.URL), "")
	} else if u.natsListen != "off" {
		line("NATS (embedded)", "nats://"+u.natsListen, "")
	}
	line("index service", u.indexer.RPC.Listen, admin(u.indexer.Admin))
	line("queue service", u.queue.config.RPC.Listen, admin(u.queue.config.Admin))
	line("reflector service", u.reflecting.config.RPC.Listen, admin(u.reflecting.config.Admin))
	if u.runs("gateway") {
		line("Kubernetes API (gateway)", u.gateway.url(), admin(u.gateway.config.Admin))
	}
	if u.runs("console") {
		line("console", u.console.url(), admin(u.console.config.Admin))
	}
	if u.runs("controllers") {
		line("controllers", strings.Join(u.control.names, ", "), admin(u.control.config.Admin))
	}
	if u.runs("nodes") {
		line("nodes (simulated)", strings.Join(u.nodes.names(), ", "), admin(u.nodes.admin))
	}
	line("data", u.dataDir, "")
	fmt.Fprint(t, "\nTry:\n")
	for _, name := range []string{"index-listen", "queue-listen", "reflector-listen", "api-listen"} {
		u.export(t, flags.Lookup(name))
	}
	fmt.Fprint(t, `  deltaplane status
  deltaplane get pods -o wide
  deltaplane watch jobs
  deltaplane apply -f examples/job.yaml
  deltaplane queue ls
`)
	if u.runs("nodes") && slices.Contains(u.control.names, "nodelifecycle") {
		fmt.Fprintln(t, "  deltaplane demo node-failure")
	}
	if u.runs("gateway") && !u.ownCluster && u.gateway.config.Listen == gateway.DefaultListen {
		fmt.Fprintln(t, "  deltaplane kubeconfig -o gateway.kubeconfig && kubectl --kubeconfig gateway.kubeconfig get pods -A")
	}
	for _, what := range missing {
		fmt.Fprintf(t, "\nnot served yet: %s", what)
	}
	fmt.Fprintln(t, "\nCtrl-C stops it.")
	if err := t.Flush(); err != nil {
		return err
	}
	if u.ownCluster && !u.noDemo {
		return seedDemo(ctx, client)
	}
	return nil
}

// admin is the address of an admin page, if it is served.
func admin(c telemetry.AdminConfig) string {
	if c.Listen == "off" {
		return ""
	}
	return "admin http://" + c.Listen
}

// await waits until the queue answers and every reflected collection is served, and returns what is
// missing when its timeout ends.
func (u *upFlags) await(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, greetTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var missing []string
	for {
		now := u.missing(ctx)
		if ctx.Err() != nil && missing != nil {
			return missing // what was cut short says nothing
		}
		if missing = now; len(missing) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return missing
		case <-tick.C:
		}
	}
}

// export prints what points the commands to try at an address that is not the default.
func (u *upFlags) export(out io.Writer, f *pflag.Flag) {
	if f == nil || f.Value.String() == f.DefValue || f.Name == "api-listen" && !u.ownCluster {
		return
	}
	name, address := strings.TrimSuffix(f.Name, "-listen")+"-url", f.Value.String()
	if f.Name == "api-listen" {
		address = "http://" + address
	}
	fmt.Fprintf(out, "  export %s=%s\n", cli.EnvName(name), address)
}

// withoutPassword is a list of URLs as it may be shown.
func withoutPassword(list string) string {
	all := strings.Split(list, ",")
	for i, one := range all {
		all[i] = "(not shown)"
		if u, err := url.Parse(strings.TrimSpace(one)); err == nil {
			all[i] = u.Redacted()
		}
	}
	return strings.Join(all, ",")
}

// missing is what does not answer yet.
func (u *upFlags) missing(ctx context.Context) []string {
	var missing []string
	if !slices.Contains(u.skip, "queue") {
		if conn, err := rpc.Dial(u.queue.config.RPC.Listen, rpc.DialConfig{}); err == nil {
			if _, err := queuev1.NewQueueAdminServiceClient(conn).ListQueues(ctx, &queuev1.ListQueuesRequest{}); unreachable(err) {
				missing = append(missing, "queue service")
			}
			_ = conn.Close()
		}
	}
	if slices.Contains(u.skip, "indexer") || slices.Contains(u.skip, "reflector") {
		return missing
	}
	conn, err := rpc.Dial(u.indexer.RPC.Listen, rpc.DialConfig{})
	if err != nil {
		return missing
	}
	defer conn.Close()
	answer, err := indexv1.NewIndexServiceClient(conn).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if err != nil {
		if unreachable(err) {
			missing = append(missing, "index service")
		}
		return missing
	}
	served := 0
	for _, c := range answer.GetCollections() {
		if c.GetSynced() {
			served++
		} else {
			missing = append(missing, c.GetCollection())
		}
	}
	for _, name := range u.reflected() {
		if !slices.ContainsFunc(answer.GetCollections(), func(c *indexv1.CollectionStatus) bool { return c.GetCollection() == name }) {
			missing = append(missing, name)
		}
	}
	if served+len(missing) == 0 {
		missing = append(missing, "every collection")
	}
	if len(missing) == 0 && u.runs("nodes") {
		missing = u.missingNodes(ctx, conn)
	}
	return missing
}

// reflected are the collections of the resources that are mirrored by default; others may have
// names that only the API server can tell. Where access is checked there is no telling which of
// them are listed.
func (u *upFlags) reflected() []string {
	var names []string
	if len(u.reflecting.config.Resources) == 0 && !u.indexer.Access.Set() {
		for _, r := range reflector.DefaultResources() {
			names = append(names, u.reflecting.config.Cluster+"/"+r.Name)
		}
	}
	return names
}

// missingNodes are those that have not registered yet.
func (u *upFlags) missingNodes(ctx context.Context, index *grpc.ClientConn) []string {
	nodes := delta.Collection{Cluster: u.nodes.config.Cluster, Version: "v1", Resource: "nodes"}.String()
	got, err := indexclient.NewIndex(index).BatchGet(ctx, nodes, u.nodes.names(), indexclient.ReadOptions{View: indexclient.ViewKeys})
	if errors.Is(err, indexclient.ErrCollectionNotFound) || errors.Is(err, indexclient.ErrNotSynced) {
		return u.nodes.names()
	}
	return got.Missing
}

// unreachable reports that a server does not answer, as against refusing an anonymous caller, which
// shows that it is up.
func unreachable(err error) bool { return err != nil && cli.ExitCode(err) == cli.ExitUnavailable }

// demo are the Jobs of a new dev cluster: one that completes, and one that fails.
var demo = []string{`{
  "apiVersion": "batch/v1", "kind": "Job",
  "metadata": {"name": "hello", "namespace": "default", "labels": {"app": "demo"}},
  "spec": {"parallelism": 2, "completions": 5, "template": {
    "metadata": {"labels": {"app": "demo"}, "annotations": {"deltaplane.io/run-seconds": "2"}},
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox", "command": ["true"]}]}}}
}`, `{
  "apiVersion": "batch/v1", "kind": "Job",
  "metadata": {"name": "unlucky", "namespace": "default", "labels": {"app": "demo"}},
  "spec": {"backoffLimit": 1, "template": {
    "metadata": {"labels": {"app": "demo"}, "annotations": {"deltaplane.io/run-seconds": "1", "deltaplane.io/exit-code": "3"}},
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox", "command": ["false"]}]}}}
}`}

// seedDemo creates the demo Jobs that do not exist yet.
func seedDemo(ctx context.Context, client *kube.Client) error {
	ref := kube.Ref{Namespace: "default", Resource: kube.Resource{Group: "batch", Version: "v1", Name: "jobs", Kind: "Job", Namespaced: true}}
	var errs []error
	for _, job := range demo {
		_, err := client.Create(ctx, ref, []byte(job), kube.WriteOptions{})
		if err != nil && !kube.IsAlreadyExists(err) && ctx.Err() == nil {
			errs = append(errs, fmt.Errorf("demo: %w", err))
		}
	}
	return errors.Join(errs...)
}
