package gateway_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"
)

// Reads with version 0 through two gateways in turn may go back, but not to what was replaced long
// ago. A read that names the version of another one never does.
func TestReadsThroughTwoGatewaysGoBackNoFurtherThanTheirStatesMayBeOld(t *testing.T) {
	t.Parallel()
	r := onDevCluster(t, nil)
	const path = "/api/v1/namespaces/default/configmaps"
	resp := r.ask(r.direct, http.MethodPost, path, `{"metadata":{"name":"a"},"data":{"n":"0"}}`, "Content-Type", "application/json")
	_ = resp.Body.Close()
	doors := []string{r.url, r.another()}
	type read struct {
		n       int
		version string
	}
	list := func(door, query string) (got read, ok bool) {
		t.Helper()
		resp := r.ask(door, http.MethodGet, path+query, "")
		defer resp.Body.Close()
		var l struct {
			Metadata struct{ ResourceVersion string }
			Items    []struct {
				Metadata struct{ Name string }
				Data     struct{ N string }
			}
		}
		if err := json.NewDecoder(resp.Body).Decode(&l); err != nil {
			t.Fatal(err)
		}
		for _, o := range l.Items {
			if o.Metadata.Name == "a" {
				got.n, _ = strconv.Atoi(o.Data.N)
				ok = true
			}
		}
		got.version = l.Metadata.ResourceVersion
		return got, ok && (resp.Header.Get("X-Deltaplane-Served-By") == "index")
	}
	for _, door := range doors {
		for served := false; !served; time.Sleep(20 * time.Millisecond) {
			if _, served = list(door, any0); !served && t.Context().Err() != nil {
				t.Fatal("it is not served")
			}
		}
	}
	written := make([]time.Time, 1, 400) // when each value was replaced
	written[0] = time.Now()
	var worst time.Duration
	back, newest := 0, read{}
	for n := 1; n < 300; n++ {
		resp := r.ask(r.direct, http.MethodPatch, path+"/a", fmt.Sprintf(`{"data":{"n":"%d"}}`, n), "Content-Type", "application/merge-patch+json")
		_ = resp.Body.Close()
		written = append(written, time.Now())
		for i := range doors {
			asked := time.Now()
			got, _ := list(doors[(n+i)%2], any0)
			if got.n < newest.n {
				back++
				worst = max(worst, asked.Sub(written[got.n+1]))
			}
			if got.n > newest.n {
				newest = got
			}
			if n%10 > 0 { // a read that waits hides how far the states are apart
				continue
			}
			if named, _ := list(doors[(n+i+1)%2], "?resourceVersion="+newest.version); named.n < newest.n {
				t.Fatalf("a list not older than %s has %d after %d", newest.version, named.n, newest.n)
			}
		}
	}
	t.Logf("%d of %d reads went back, at most to what had been replaced %v before", back, 2*len(written), worst)
	if worst > 10*time.Second {
		t.Errorf("a read went back to what had been replaced %v before", worst)
	}
}
