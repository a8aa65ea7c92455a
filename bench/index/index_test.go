package index

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/core/delta"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

func TestManagedFieldsAreThoseOfTheTemplateWithThePodsOwnAddress(t *testing.T) {
	t.Parallel()
	var m population.Managers
	mean, n, forms := 0, 0, map[string]bool{}
	for template, p := range population.NewGenerator(1, 20).Each(600) {
		full, err := m.Manage(template, p)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.ManagedFields) != 0 {
			t.Fatal("the pod itself was changed")
		}
		if len(full.ManagedFields) != 2 || full.ManagedFields[1].Subresource != "status" {
			t.Fatalf("managed fields %+v, want those of controller and kubelet", full.ManagedFields)
		}
		for _, f := range full.ManagedFields {
			if !json.Valid(f.FieldsV1.GetRawBytes()) {
				t.Fatalf("%s: %s is not JSON", f.Manager, f.FieldsV1.GetRawBytes())
			}
		}
		if kubelet := string(full.ManagedFields[1].FieldsV1.GetRawBytes()); !strings.Contains(kubelet, `k:{\"ip\":\"`+p.Status.PodIP+`\"}`) {
			t.Fatalf("%s does not name the address %s", kubelet, p.Status.PodIP)
		}
		forms[string(full.ManagedFields[0].FieldsV1.GetRawBytes())] = true
		mean, n = mean+len(population.Payload(full))-len(population.Payload(p)), n+1
	}
	if mean /= n; mean < 2000 || mean > 5000 {
		t.Errorf("managed fields have %d bytes, want 2000 to 5000", mean)
	}
	if len(forms) != 20 {
		t.Errorf("%d forms for 20 templates", len(forms))
	}
}

func TestRevisedDiffersInNothingButTheVersion(t *testing.T) {
	t.Parallel()
	p := population.Populate(1, 30, 5).Pods[0]
	old := population.Record(p, delta.Added)
	got := system.Revised(old, "1000000999")
	var pod corev1.Pod
	if err := json.Unmarshal(got.Payload, &pod); err != nil {
		t.Fatal(err)
	}
	if pod.ResourceVersion != "1000000999" || got.RV != "1000000999" || got.Hash != delta.Hash(got.Payload) || got.Type != delta.Updated {
		t.Errorf("revised %+v", got)
	}
	pod.ResourceVersion = p.ResourceVersion
	if string(population.Payload(&pod)) != string(old.Payload) {
		t.Error("more than the version differs")
	}
}

func TestStateHashTellsKeysVersionsAndPayloadsApart(t *testing.T) {
	t.Parallel()
	sum := func(key, rv string, payload uint64) string {
		h := system.NewStateHash()
		h.Add("a/x", "1", 1)
		h.Add(key, rv, payload)
		return h.Sum()
	}
	base := sum("a/y", "2", 2)
	for name, other := range map[string]string{"key": sum("a/z", "2", 2), "version": sum("a/y", "3", 2), "payload": sum("a/y", "2", 3)} {
		if other == base {
			t.Errorf("another %s gives the same hash", name)
		}
	}
	keys := system.SortedKeys(map[delta.Key]system.ObjectState{"b/a": {}, "a-b/c": {}, "a/z": {}})
	if want := []delta.Key{"a/z", "a-b/c", "b/a"}; !slices.Equal(keys, want) {
		t.Errorf("keys %v, want %v: by namespace, then by name", keys, want)
	}
}

func TestQueryAnswerReadsTheTagOfACutAnswer(t *testing.T) {
	t.Parallel()
	objects := make([]*indexv1.Object, 30)
	for i := range objects {
		objects[i] = &indexv1.Object{Key: strings.Repeat("k", 40)}
	}
	whole := system.Encoded(&indexv1.QueryResponse{Tag: 300, Answer: &indexv1.QueryResponse_ByIndex{ByIndex: &indexv1.ByIndexResponse{Objects: objects}}})
	if tag, err := queryAnswer(whole.Data[:64]); tag != 300 || err != nil {
		t.Errorf("tag %d, %v, want 300", tag, err)
	}
	failed := system.Encoded(&indexv1.QueryResponse{Tag: 7, Answer: &indexv1.QueryResponse_Error{Error: &indexv1.QueryError{Code: 5, Message: "no such index"}}})
	if tag, err := queryAnswer(failed.Data); tag != 7 || err == nil || !strings.Contains(err.Error(), "no such index") {
		t.Errorf("tag %d, %v, want 7 and the message", tag, err)
	}
	if _, err := queryAnswer(whole.Data[:3]); err == nil {
		t.Error("an answer that ends after its tag is taken")
	}
	var asked indexv1.QueryRequest
	if err := proto.Unmarshal(queryRequest(300, system.Encoded(system.ByIndexRequest("node-1"))).Data, &asked); err != nil || asked.GetTag() != 300 || asked.GetByIndex().GetIndex() != "node" {
		t.Errorf("asked %v, %v", &asked, err)
	}
}

func TestAMessageInPiecesIsTheSameMessage(t *testing.T) {
	t.Parallel()
	whole := &load.Wire{Data: []byte("head-one-two-one-tail")}
	got, err := whole.InPieces([]byte("one"), []byte("one"), []byte("tail"))
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, p := range got.Pieces {
		texts = append(texts, string(p.ReadOnlyData()))
	}
	if want := []string{"head-", "one", "-two-", "one", "-", "tail"}; !slices.Equal(texts, want) {
		t.Errorf("pieces %q, want %q", texts, want)
	}
	if sent, err := load.NewCodec().Marshal(got); err != nil || string(sent.Materialize()) != string(whole.Data) {
		t.Errorf("sent %q, %v", sent.Materialize(), err)
	}
	for i, piece := range got.Near().Pieces {
		if want := got.Pieces[i].ReadOnlyData(); !bytes.Equal(piece.ReadOnlyData(), want) {
			t.Errorf("piece %d of one buffer is %q, want %q", i, piece.ReadOnlyData(), want)
		}
	}
	if _, err := whole.InPieces([]byte("tail"), []byte("head")); err == nil {
		t.Error("parts that are not there in this order are taken")
	}
}

func TestInformerHasTheFiveIndexes(t *testing.T) {
	t.Parallel()
	p := population.Populate(1, 30, 5).Pods[0]
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, system.CacheIndexes())
	if err := indexer.Add(p); err != nil {
		t.Fatal(err)
	}
	for index, value := range map[string]string{
		"namespace": p.Namespace, "node": p.Spec.NodeName, "owner": string(p.OwnerReferences[0].UID),
		"label": "tier=" + p.Labels["tier"], system.ImageIndex: p.Spec.Containers[0].Image,
	} {
		if got, err := indexer.ByIndex(index, value); err != nil || len(got) != 1 {
			t.Errorf("%s %s: %d objects, %v, want 1", index, value, len(got), err)
		}
	}
}
