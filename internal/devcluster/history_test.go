package devcluster_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/internal/devcluster"
)

// contents maps each listed config map to its data.
func contents(t *testing.T, list doc) map[string]string {
	t.Helper()
	out := map[string]string{}
	items, _ := list["items"].([]any)
	for _, v := range items {
		o := doc(v.(map[string]any))
		out[o.text("metadata.name")] = o.text("data.k")
	}
	return out
}

// A random history is compared with a map kept beside it: every version still in the
// window must list exactly as it was, in pages too.
func TestEveryVersionInTheWindowListsAsItWas(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 1))
			c := idle(t, devcluster.Config{HistoryEvents: 1000})
			model := map[string]string{}
			past := map[uint64]map[string]string{}
			for step := range 150 {
				name := fmt.Sprintf("cm-%02d", rng.IntN(20))
				_, exists := model[name]
				switch {
				case !exists:
					must(t, c, http.MethodPost, configMaps, configMap(name))
					model[name] = "v"
				case rng.IntN(3) == 0:
					must(t, c, http.MethodDelete, configMaps+"/"+name, nil)
					delete(model, name)
				default:
					value := fmt.Sprint(step)
					must(t, c, http.MethodPatch, configMaps+"/"+name, fmt.Sprintf(`{"data":{"k":%q}}`, value))
					model[name] = value
				}
				past[c.ResourceVersion()] = maps.Clone(model)
			}
			for rv, want := range past {
				got := map[string]string{}
				path := fmt.Sprintf("%s?resourceVersion=%d&resourceVersionMatch=Exact&limit=7", configMaps, rv)
				for path != "" {
					list := must(t, c, http.MethodGet, path, nil)
					maps.Copy(got, contents(t, list))
					path = ""
					if token := list.text("metadata.continue"); token != "" {
						path = configMaps + "?limit=7&continue=" + token
					}
				}
				if diff := cmp.Diff(got, want); diff != "" {
					t.Fatalf("version %d (-got +want):\n%s", rv, diff)
				}
			}
		})
	}
}
