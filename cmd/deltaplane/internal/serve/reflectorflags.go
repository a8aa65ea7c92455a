package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/seal"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// reflecting are the flags that say what is mirrored from where.
type reflecting struct {
	config    reflector.Config
	clusters  []string
	resources resourceList
}

func (r *reflecting) register(flags *pflag.FlagSet) {
	defer cli.Section(flags, cli.SectionMirror)()
	end := cli.Section(flags, cli.SectionCluster)
	flags.StringSliceVar(&r.clusters, "cluster", []string{"dev"}, `clusters to mirror, each as name[=source]; the `+"`name`"+` is the first part of its collections' names.
The source is KUBECONFIG[#CONTEXT], #CONTEXT of the kubeconfig that kubectl would take,
in-cluster or a URL; the first cluster may leave it to --kubeconfig and the like`)
	end()
	flags.Var(&r.resources, "resources", `what to mirror: resource[.version][.group][/namespace[+namespace...]], or "*" for all but secrets and
events.k8s.io; several namespaces need permission to list and watch the whole cluster;
or a map of a ReflectionSpec's fields, as `+"`spec`"+`: {resource: pods, label_selector: app=web}
(default pods, nodes, jobs.batch and leases.coordination.k8s.io/kube-node-lease)`)
	flags.BoolVar(&r.config.KeepManagedFields, "keep-managed-fields", r.config.KeepManagedFields, "mirror metadata.managedFields of all --resources too, which the gateway needs to answer in the place of the API server")
	flags.BoolVar(&r.config.MirrorSecrets, "mirror-secrets", false, "let secrets be mirrored, where --resources or a caller names them; needs --encryption-key-file")
	flags.IntVar(&r.config.MaxAdded, "max-added", 0, "`reflections` that callers may add to one cluster (default 500)")
	flags.DurationVar(&r.config.DiscoverEvery, "discover-every", 0, `how often "*" and resources that are not served yet are looked for (default 30s)`)
	flags.DurationVar(&r.config.KeepVanished, "keep-vanished", 0, `how long the log of a collection of "*" is kept after the API server ceased to serve it (default 1h)`)
	flags.DurationVar(&r.config.LivenessEvery, "liveness-every", 0, "how often each log says that it is current (default 2s); a node's silence is known no finer")
	flags.DurationVar(&r.config.Gather, "gather", 0, "how long after some changes of a collection those that follow are gathered, which saves CPU and delays them; at most 1s (default: not at all)")
	flags.IntVar(&r.config.PageSize, "page-size", 0, "objects per page of a list (default 500 where pages help)")
	flags.StringVar((*string)(&r.config.WatchList), "watch-list", "", "`way` in which initial states are read: auto lists, and streams where a list runs out of time; always, only or never stream (default auto)")
	flags.DurationVar(&r.config.WatchListTimeout, "watch-list-timeout", 0, "how long a streaming start may go without an object and without its end before the collection is listed instead (default 30s)")
	flags.DurationVar(&r.config.QuietAfter, "quiet-after", 0, "how long a watch may be silent before the API server is asked whether it has reached the watch's version (default 2m)")
	flags.Var((*byteSize)(&r.config.StageBytes), "stage-bytes", "`bytes` of changes that may wait for a slow log, in each collection, before they are folded (default 64Mi)")
}

// encrypted reports secrets that would lie in the log as they are.
func (r *reflecting) encrypted(p seal.Policy) error {
	if r.config.MirrorSecrets && !p.Covers("", seal.Secrets) {
		return errors.New("--mirror-secrets needs --encryption-key-file, and secrets among --encrypted-resources")
	}
	return nil
}

// read parses clusters and resources. The first cluster's source becomes that of k.
func (r *reflecting) read(k *cli.KubeFlags) error {
	var errs []error
	fault := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	r.config.Clusters, r.config.Resources = nil, nil
	for i, text := range r.clusters {
		name, source, has := strings.Cut(text, "=")
		switch {
		case i == 0:
			r.config.Cluster = name
			if !has {
				continue
			}
			if k.Given() {
				fault("cluster", fmt.Errorf("%s has a source, and so have --kubeconfig, --context, --api-url or --in-cluster", name))
			}
			c, err := clusterSource(source)
			k.Config.Kubeconfig, k.Config.Context, k.Config.URL, k.Config.InCluster = c.Kubeconfig, c.Context, c.URL, c.InCluster
			k.Flag = "--cluster " + name
			fault("cluster", err)
		case !has:
			fault("cluster", fmt.Errorf("%q has no source; only the first one may leave it to --kubeconfig: want name=KUBECONFIG[#CONTEXT]", name))
		default:
			c, err := clusterSource(source)
			if err == nil {
				var client *kube.Client
				if client, err = kube.Load(c); err == nil {
					r.config.Clusters = append(r.config.Clusters, reflector.Cluster{Name: name, Kube: client})
				}
			}
			if err != nil {
				fault("cluster", fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	if len(r.clusters) == 0 {
		fault("cluster", errors.New("names none"))
	}
	for i, item := range r.resources {
		resource, faults := readResource(item)
		for _, f := range faults {
			flag := fmt.Sprintf("resources[%d]", i)
			if f.Field != "" {
				flag += "." + f.Field
			}
			fault(flag, errors.New(f.Description))
		}
		if len(faults) == 0 {
			r.config.Resources = append(r.config.Resources, resource)
		}
	}
	return errors.Join(errs...)
}

// readResource reads a name, or a spec as JSON.
func readResource(item string) (reflector.Resource, []*rpc.FieldError) {
	if strings.HasPrefix(item, "{") {
		return reflector.ParseSpec([]byte(item))
	}
	resource, err := reflector.ParseResource(item)
	if err == nil {
		return resource, nil
	}
	name, namespace, _ := strings.Cut(item, "/")
	fields := map[string]any{"resource": name, "namespace": namespace}
	if strings.Contains(namespace, "+") {
		fields = map[string]any{"resource": name, "namespaces": strings.Split(namespace, "+")}
	}
	if spec, jsonErr := json.Marshal(fields); jsonErr == nil {
		if _, faults := reflector.ParseSpec(spec); len(faults) > 0 {
			return resource, faults
		}
	}
	return resource, []*rpc.FieldError{{Description: err.Error(), Err: err}}
}

// clusterSource reads KUBECONFIG[#CONTEXT], #CONTEXT, in-cluster or a URL.
func clusterSource(text string) (kube.Config, error) {
	switch {
	case text == "":
		return kube.Config{}, errors.New("the source is empty: want KUBECONFIG[#CONTEXT], #CONTEXT, in-cluster or a URL")
	case text == "in-cluster":
		return kube.Config{InCluster: true}, nil
	case strings.HasPrefix(text, "http://"), strings.HasPrefix(text, "https://"):
		return kube.Config{URL: text}, nil
	}
	file, context, _ := strings.Cut(text, "#")
	return kube.Config{Kubeconfig: file, Context: context}, nil
}

// resourceList is what --resources was given: names, and specs as JSON objects.
type resourceList []string

// Set implements pflag.Value: names separated by commas, or YAML of one spec or a list.
func (l *resourceList) Set(text string) error {
	text = strings.TrimSpace(text)
	if !strings.HasPrefix(text, "{") && !strings.HasPrefix(text, "[") {
		for name := range strings.SplitSeq(text, ",") {
			*l = append(*l, strings.TrimSpace(name))
		}
		return nil
	}
	value, err := yaml.Parser().Unmarshal([]byte("is: " + strings.ReplaceAll(text, "\n", " ")))
	if err != nil {
		return fmt.Errorf("%.200q is no YAML: %w", text, err)
	}
	items, ok := value["is"].([]any)
	if !ok {
		items = []any{value["is"]}
	}
	for _, item := range items {
		if name, ok := item.(string); ok {
			*l = append(*l, name)
			continue
		}
		spec, err := json.Marshal(item)
		if err != nil {
			return fmt.Errorf("%.200q: %w", text, err)
		}
		*l = append(*l, string(spec))
	}
	return nil
}

// Replace implements pflag.SliceValue.
func (l *resourceList) Replace(items []string) error {
	*l = nil
	for _, item := range items {
		if err := l.Append(item); err != nil {
			return err
		}
	}
	return nil
}

// AcceptsMap makes a map in a --config file a value, as it is on the command line.
func (*resourceList) AcceptsMap() {}

// Append implements pflag.SliceValue.
func (l *resourceList) Append(item string) error { return l.Set(item) }

// GetSlice implements pflag.SliceValue.
func (l *resourceList) GetSlice() []string { return *l }

// String implements pflag.Value.
func (l *resourceList) String() string { return strings.Join(*l, ",") }

// Type implements pflag.Value.
func (*resourceList) Type() string { return "resources" }
