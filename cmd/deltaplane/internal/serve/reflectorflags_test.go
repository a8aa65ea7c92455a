package serve

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/services/reflector"
)

const twoContexts = `
apiVersion: v1
kind: Config
current-context: one
clusters: [{name: c, cluster: {server: "https://api.example:6443"}}]
contexts: [{name: one, context: {cluster: c}}, {name: two, context: {cluster: c}}]
`

// settled is what the flags come to with an environment and a settings file.
func settled(t *testing.T, env map[string]string, file string, args ...string) (*reflecting, *cli.KubeFlags, error) {
	t.Helper()
	var r reflecting
	var k cli.KubeFlags
	cmd := &cobra.Command{Use: "x", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return nil }}
	cmd.SetOut(io.Discard)
	r.register(cmd.Flags())
	k.Register(cmd.Flags())
	cmd.Flags().String("config", "", "")
	if file != "" {
		path := filepath.Join(t.TempDir(), "settings.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	cmd.PreRunE = cli.ApplySettings(func() []string {
		var all []string
		for name, value := range env {
			all = append(all, name+"="+value)
		}
		return all
	})
	cmd.SetArgs(args)
	if err := cmd.Execute(); err != nil {
		return &r, &k, err
	}
	return &r, &k, r.read(&k)
}

func TestResourcesAreTheSameInFlagsEnvironmentAndFile(t *testing.T) {
	t.Parallel()
	const want = "[nodes  false [] | leases.coordination.k8s.io kube-node-lease false [] | pods  true [status.images spec.x] map[node:metadata.generateName]]"
	spec := `{resource: pods, metadata_only: true, drop_fields: [status.images, spec.x], hints: {node: metadata.generateName}}`
	for name, x := range map[string]struct {
		env  map[string]string
		file string
		args []string
	}{
		"flags":       {args: []string{"--resources", "nodes,leases.coordination.k8s.io/kube-node-lease", "--resources", spec}},
		"one flag":    {args: []string{"--resources", "[nodes, leases.coordination.k8s.io/kube-node-lease, " + spec + "]"}},
		"environment": {env: map[string]string{"DELTAPLANE_RESOURCES": "[nodes, leases.coordination.k8s.io/kube-node-lease, " + spec + "]"}},
		"file":        {file: "resources:\n- nodes\n- leases.coordination.k8s.io/kube-node-lease\n- " + spec + "\n"},
	} {
		r, _, err := settled(t, x.env, x.file, x.args...)
		var got []string
		for _, one := range r.config.Resources {
			text := fmt.Sprint(one.Name, " ", one.Scope.Namespace, " ", one.MetadataOnly, " ", one.Transform.Drop)
			if one.Transform.Hints != nil {
				text += fmt.Sprint(" ", one.Transform.Hints)
			}
			got = append(got, text)
		}
		if text := "[" + strings.Join(got, " | ") + "]"; err != nil || text != want {
			t.Errorf("%s: %v, %v\nwant %s", name, text, err, want)
		}
	}
}

func TestOneSpecInAFileIsAMap(t *testing.T) {
	t.Parallel()
	r, _, err := settled(t, nil, "resources: {resource: pods, metadata_only: true}\n")
	if got := r.config.Resources; err != nil || len(got) != 1 || got[0].Name != "pods" || !got[0].MetadataOnly {
		t.Errorf("%+v, %v", got, err)
	}
	if _, _, err := settled(t, nil, "page-size: {a: 1}\n"); err == nil || !strings.Contains(err.Error(), `"page-size" takes a value, not a map`) {
		t.Errorf("a map where none fits: %v", err)
	}
}

func TestTimeoutsOfTheSourceAreTheSameInFlagsEnvironmentAndFile(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		env  map[string]string
		file string
		args []string
	}{
		"flags":       {args: []string{"--watch-list-timeout", "40s", "--quiet-after", "3m"}},
		"environment": {env: map[string]string{"DELTAPLANE_WATCH_LIST_TIMEOUT": "40s", "DELTAPLANE_QUIET_AFTER": "3m"}},
		"file":        {file: "watch-list-timeout: 40s\nquiet-after: 3m\n"},
	} {
		r, _, err := settled(t, x.env, x.file, x.args...)
		if c := r.config; err != nil || c.WatchListTimeout != 40*time.Second || c.QuietAfter != 3*time.Minute {
			t.Errorf("%s: %v and %v, %v", name, c.WatchListTimeout, c.QuietAfter, err)
		}
	}
}

func TestAContextAloneNamesAClusterOfTheUsersKubeconfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, []byte(twoContexts), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
	for _, args := range [][]string{{"--cluster", "prod=#two"}, {"--context", "two"}} {
		_, k, err := settled(t, nil, "", args...)
		if err != nil || !k.Given() {
			t.Errorf("%q: %+v, %v", args, k.Config, err)
			continue
		}
		if client, err := k.Load(); err != nil || client.Address() != "https://api.example:6443" {
			t.Errorf("%q: %v, %v", args, client, err)
		}
	}
	_, k, err := settled(t, nil, "", "--cluster", "prod=#three")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Load(); err == nil || !strings.Contains(err.Error(), "--cluster prod: ") || !strings.Contains(err.Error(), "three") {
		t.Errorf("a context that is not there: %v", err)
	}
}

func TestClustersAreNamedWithTheirSources(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, []byte(twoContexts), 0o600); err != nil {
		t.Fatal(err)
	}
	r, k, err := settled(t, nil, "", "--cluster", "prod="+path+"#two", "--cluster", "again="+path, "--cluster", "dev=http://127.0.0.1:7448")
	var others []string
	for _, c := range r.config.Clusters {
		others = append(others, c.Name+" "+c.Kube.Address())
	}
	if err != nil || r.config.Cluster != "prod" || k.Config.Kubeconfig != path || k.Config.Context != "two" ||
		strings.Join(others, ", ") != "again https://api.example:6443, dev http://127.0.0.1:7448" {
		t.Errorf("%q at %+v, others %v, %v", r.config.Cluster, k.Config, others, err)
	}
	if r, k, err := settled(t, map[string]string{"DELTAPLANE_CLUSTER": "prod"}, "", "--kubeconfig", path); err != nil || r.config.Cluster != "prod" || k.Config.Kubeconfig != path {
		t.Errorf("as it was before there were several: %q, %+v, %v", r.config.Cluster, k.Config, err)
	}
}

func TestEveryFaultOfWhatIsMirroredIsReportedTogether(t *testing.T) {
	t.Parallel()
	r, _, err := settled(t, nil, "", "--kubeconfig", "here", "--cluster", "a=there", "--cluster", "b", "--cluster", "c=/no/such/file", "--cluster", "d=",
		"--resources", "{resource: pods, drop_fields: [..]}", "--resources", "{resource: pods, colour: red}", "--resources", "Pods")
	err = fmt.Errorf("%w\n%w", err, r.config.Validate())
	for _, want := range []string{"a has a source", `"b" has no source`, "/no/such/file", "d: the source is empty", "drop_fields[0]", "colour", `"Pods"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nnames nothing of %q", err, want)
		}
	}
	_, _, err = settled(t, nil, "", "--resources", "nodes,Pods", "--resources",
		`[{resource: Jobs, dropFields: [a, "..", 5], metadata_only: 7, colour: red, namespace: Web, labels: a}, {drop_fields: [a], dropFields: [b]}, {resource: pods, hints: {a: 5}}]`)
	for _, want := range []string{
		`--resources[1].resource: "Pods": want name[.version][.group]: 'P' is no`, `--resources[2].dropFields[2]: `, `--resources[2].metadata_only: `, `--resources[2].colour: unknown field`,
		`--resources[2].namespace: "Web"`, `--resources[2].labels: `, `--resources[2].resource: "Jobs"`, `--resources[3]: `, `--resources[4].hints: `,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nnames nothing of %q", err, want)
		}
	}
	_, _, err = settled(t, nil, "", "--resources", "po!ds", "--resources", "-pods", "--resources", "pods/My_Space", "--resources", "pods/",
		"--resources", "pods/a+My_Space+")
	for _, want := range []string{
		`--resources[0].resource: "po!ds": want name[.version][.group]: '!' is no lower-case letter`, `--resources[1].resource: "-pods"`,
		`--resources[2].namespace: "My_Space"`, `--resources[3]: `, `--resources[4].namespaces[1]: "My_Space"`, `--resources[4].namespaces[2]: is empty`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nnames nothing of %q", err, want)
		}
	}
	err = (reflector.Config{Cluster: "a", Clusters: []reflector.Cluster{{Name: "a"}}, Resources: []reflector.Resource{{Name: "pods", Cluster: "z"}}}).Validate()
	for _, want := range []string{`"a" is named twice`, `"a" has no client`, `cluster "z" is not one of a`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nnames nothing of %q", err, want)
		}
	}
}
