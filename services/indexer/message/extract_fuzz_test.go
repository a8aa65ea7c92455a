package message

import (
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/services/indexer/define"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
)

func FuzzExtractNeverPanics(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a","namespace":"b","labels":{"x":"y"},"ownerReferences":[{"uid":"u","kind":"Job","controller":true}]},"spec":{"nodeName":"n"}}`))
	f.Add([]byte(`{"metadata":{"labels":[],"ownerReferences":{}},"spec":[{"nodeName":{}}]}`))
	f.Add([]byte(`{"metadata":{"name":"A\ud800"}}`))
	x := extract.New(extract.NewPlan(define.Paths(delta.Collection{Resource: "pods"}, map[string][]string{"pods": {"status.phase"}}), nil))
	f.Fuzz(func(t *testing.T, payload []byte) {
		before := string(payload)
		o, err := x.Example(t.Context(), payload)
		if string(payload) != before {
			t.Fatal("the payload was changed")
		}
		if err != nil {
			return
		}
		for _, term := range o.Labels().Terms() {
			if name, _, ok := strings.Cut(term, "="); !ok && !o.Labels().Has(name) {
				t.Fatalf("term %q of a label that is not there", term)
			}
		}
		p := Projection{Mask: metadataMask}
		p.Payload(payload)
		mask, err := parseMask([]string{"metadata.name", "spec.nodeName", "metadata.ownerReferences.uid"})
		if err != nil {
			t.Fatal(err)
		}
		(&Projection{Mask: mask}).Payload(payload)
	})
}
