package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

func TestTheDocumentedPipeMakesPayloadsReadable(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/index.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`grpcurl \.\.\. \| jq '(.+)'`).FindSubmatch(page)
	if found == nil {
		t.Fatal("docs/index.md does not have the pipe")
	}
	jq, err := exec.LookPath("jq")
	if err != nil {
		t.Skip("there is no jq here")
	}
	object := &indexv1.Object{Key: "ns/ü", Payload: []byte(`{"metadata":{"name":"ü"},"spec":{"replicas":3}}`)}
	for name, m := range map[string]proto.Message{
		"objects": &indexv1.ListResponse{Objects: []*indexv1.Object{object, {Key: "ns/unreadable"}}},
		"object":  &indexv1.GetResponse{Object: object},
		"events":  &indexv1.WatchResponse{Kind: &indexv1.WatchResponse_Events{Events: &indexv1.Events{Events: []*indexv1.Event{{Object: object, Previous: object}}}}},
	} {
		text, err := protojson.Marshal(m) // grpcurl's form
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), jq, string(found[1]))
		cmd.Stdin = strings.NewReader(string(text))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
			continue
		}
		var document any
		if err := json.Unmarshal(out, &document); err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		n := 0
		payloads(document, func(payload any) {
			n++
			if got, _ := json.Marshal(payload); string(got) != `{"metadata":{"name":"ü"},"spec":{"replicas":3}}` {
				t.Errorf("%s: a payload is %s", name, got)
			}
		})
		if n == 0 {
			t.Errorf("%s: no payload in %s", name, out)
		}
	}
}

// payloads calls f with each payload of a document.
func payloads(document any, f func(any)) {
	switch v := document.(type) {
	case map[string]any:
		for k, one := range v {
			if k == "payload" {
				f(one)
			} else {
				payloads(one, f)
			}
		}
	case []any:
		for _, one := range v {
			payloads(one, f)
		}
	}
}
