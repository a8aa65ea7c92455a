package cli

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// KubeFlags choose an API server.
type KubeFlags struct {
	Config kube.Config
	Flag   string // what errors call the source; default the flag that gave it
}

// Register adds the flags.
func (k *KubeFlags) Register(flags *pflag.FlagSet) {
	defer Section(flags, SectionCluster)()
	flags.StringVar(&k.Config.Kubeconfig, "kubeconfig", "", "kubeconfig `file` of the cluster")
	flags.StringVar(&k.Config.Context, "context", "", "`name` of the kubeconfig's context (default: its current one)")
	flags.StringVar(&k.Config.URL, "api-url", "", "`URL` of an API server that needs no credentials (default: the dev cluster's, "+defaultAPIURL+")")
	flags.BoolVar(&k.Config.InCluster, "in-cluster", false, "use the service account of the pod this runs in")
}

// Given reports that a flag names a cluster. A context alone does: it is looked up in the
// kubeconfig kubectl would take.
func (k *KubeFlags) Given() bool {
	c := k.Config
	return c.Kubeconfig != "" || c.Context != "" || c.InCluster || c.URL != ""
}

// Source is how the API server is reached that the flags describe.
func (k *KubeFlags) Source() kube.Config {
	c := k.Config
	if !k.Given() {
		c.URL = defaultAPIURL
	}
	return c
}

// Load makes the client the flags describe.
func (k *KubeFlags) Load() (*kube.Client, error) {
	c, flag := k.Source(), k.Flag
	if flag == "" {
		switch {
		case c.Kubeconfig != "":
			flag = "--kubeconfig"
		case c.URL != "":
			flag = "--api-url"
		case c.InCluster:
			flag = "--in-cluster"
		default:
			flag = "--context"
		}
	}
	client, err := kube.Load(c)
	if err != nil {
		err = &UsageError{fmt.Errorf("%s: %w", flag, err)}
		if c.Context != "" {
			return nil, &HintError{err, `"kubectl config get-contexts" lists the contexts of a kubeconfig; --kubeconfig names another file`}
		}
		return nil, err
	}
	return client, nil
}
