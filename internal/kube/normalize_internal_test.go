package kube

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/deltaplane/deltaplane/internal/jsonscan/jsonscantest"
)

// A pod with a few bytes changed: Normalize never stores what is not JSON.
func TestNormalizeStoresOnlyJSON(t *testing.T) {
	t.Parallel()
	pod, err := os.ReadFile("testdata/pod.json")
	if err != nil {
		t.Fatal(err)
	}
	valid := 0
	for seed := range uint64(1500) {
		text := jsonscantest.Damage(pod, seed)
		if json.Valid(text) {
			valid++
		}
		normalize(t, text)
	}
	if valid < 100 || valid > 1400 {
		t.Errorf("%d of 1500 are valid: the damage says nothing", valid)
	}
}

// normalize takes text in, and checks what comes out.
func normalize(t *testing.T, text []byte) {
	t.Helper()
	tr := Transform{Hints: map[string]string{"node": "spec.nodeName"}}
	slow := Transform{Hints: map[string]string{"node": "spec.nodeName", "slow": "spec.#"}} // not found on the way
	r := Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}
	o, err := tr.Normalize(text, r)
	if err == nil && !json.Valid(o.Payload) {
		t.Fatalf("stored %q", o.Payload)
	}
	if s, _ := slow.Normalize(text, r); err == nil && len(o.Hints["node"]) == 1 && (len(s.Hints["node"]) != 1 || s.Hints["node"][0] != o.Hints["node"][0]) {
		t.Fatalf("hints %v, by path %v", o.Hints, s.Hints)
	}
}

func FuzzNormalize(f *testing.F) {
	for _, text := range []string{`{"metadata":{"name":"a","resourceVersion":"1"},"spec":{"nodeName":"n"}}`, `[1.5e3,"\u00e9\n",null]`, `{"a":[{}`, `{"a":{"\`} {
		f.Add([]byte(text))
	}
	f.Fuzz(normalize)
}
