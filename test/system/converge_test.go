package system

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// mirrored are the collections every target reflects, with the path that lists them and the type of
// their items.
var mirrored = []struct{ collection, path, apiVersion, kind string }{
	{"pods", "/api/v1/pods", "v1", "Pod"},
	{"jobs", "/apis/batch/v1/jobs", "batch/v1", "Job"},
	{"nodes", "/api/v1/nodes", "v1", "Node"},
	{"leases", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", "coordination.k8s.io/v1", "Lease"},
}

// checkConverged waits until every index equals the API server, object by object but for managed
// fields.
func checkConverged(t *testing.T, x *Target) {
	t.Helper()
	client := x.index(t)
	for _, m := range mirrored {
		eventually(t, time.Minute, m.collection+" in the index equal the API server's", func(ctx context.Context) error {
			want, err := apiObjects(ctx, x, m.path, m.apiVersion, m.kind)
			if err != nil {
				return err
			}
			got, err := indexObjects(ctx, client, m.collection)
			if err != nil {
				return err
			}
			for key, object := range want {
				if !bytes.Equal(got[key], object) {
					return fmt.Errorf("%s:\nindex %s\nAPI   %s", key, got[key], object)
				}
			}
			for key := range got {
				if want[key] == nil {
					return fmt.Errorf("%s is in the index and not on the API server", key)
				}
			}
			return nil
		})
	}
}

// apiObjects lists objects by key, transformed as the reflector does and in canonical JSON.
func apiObjects(ctx context.Context, x *Target, path, apiVersion, kind string) (map[string][]byte, error) {
	var list struct{ Items []map[string]any }
	if err := x.API.get(ctx, path, &list); err != nil {
		return nil, err
	}
	objects := map[string][]byte{}
	for _, item := range list.Items {
		item["apiVersion"], item["kind"] = apiVersion, kind
		metadata := item["metadata"].(map[string]any)
		delete(metadata, "managedFields")
		key := fmt.Sprint(metadata["name"])
		if namespace, ok := metadata["namespace"]; ok {
			key = fmt.Sprint(namespace, "/", key)
		}
		canonical, err := json.Marshal(item)
		if err != nil {
			return nil, err
		}
		objects[key] = canonical
	}
	return objects, nil
}

func indexObjects(ctx context.Context, client indexv1.IndexServiceClient, collection string) (map[string][]byte, error) {
	objects := map[string][]byte{}
	for token := ""; ; {
		page, err := client.List(ctx, &indexv1.ListRequest{Collection: collection, PageToken: token, PageSize: 200})
		if err != nil {
			return nil, err
		}
		for _, o := range page.GetObjects() {
			var item map[string]any
			if err := json.Unmarshal(o.GetPayload(), &item); err != nil {
				return nil, fmt.Errorf("%s: %w", o.GetKey(), err)
			}
			metadata, _ := item["metadata"].(map[string]any)
			if annotations, ok := metadata["annotations"].(map[string]any); ok && len(annotations) == 0 {
				delete(metadata, "annotations")
			}
			delete(metadata, "managedFields") // "up" mirrors them
			if objects[o.GetKey()], err = json.Marshal(item); err != nil {
				return nil, err
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return objects, nil
		}
	}
}
