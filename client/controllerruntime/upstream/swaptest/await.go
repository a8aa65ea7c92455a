package swaptest

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/deltaplane/deltaplane/client"
)

// resources are those that specs write before they make a cache.
var resources = []schema.GroupVersionResource{
	{Version: "v1", Resource: "pods"},
	{Version: "v1", Resource: "nodes"},
	{Version: "v1", Resource: "namespaces"},
	{Version: "v1", Resource: "services"},
	{Version: "v1", Resource: "serviceaccounts"},
	{Group: "apps", Version: "v1", Resource: "deployments"},
}

// await returns once the index has the objects that the API server has: the specs read what they
// wrote before they made the cache.
func await(ctx context.Context, cfg *rest.Config) error {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	api, err := metadata.NewForConfig(cfg)
	if err != nil {
		return err
	}
	reads := client.NewIndex(index)
	for _, r := range resources {
		collection := "dev/" + r.Resource + "." + r.Version
		if r.Group != "" {
			collection += "." + r.Group
		}
		for {
			there, here := map[string]bool{}, map[string]bool{}
			list, err := api.Resource(r).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, o := range list.Items {
				there[o.Namespace+"/"+o.Name+"@"+o.ResourceVersion] = true
			}
			objects, _, err := reads.List(ctx, collection, client.ListOptions{ReadOptions: client.ReadOptions{View: client.ViewMetadata}})
			for _, o := range objects {
				key := o.Key
				if !strings.Contains(key, "/") {
					key = "/" + key
				}
				here[key+"@"+o.ResourceVersion] = true
			}
			if err == nil && maps.Equal(there, here) {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%w: %s: the index has %d objects, the API server %d: %w", ctx.Err(), collection, len(here), len(there), err)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return nil
}
