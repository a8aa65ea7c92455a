package wire

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

func herd(n, perNode, pad int) []podFacts {
	pods := make([]podFacts, n)
	for i := range pods {
		pods[i] = podFacts{
			namespace: fmt.Sprintf("ns-%02d", i%20), name: fmt.Sprintf("some-deployment-5d4f8c7b9-%05d", i), node: fmt.Sprintf("node-%04d", i%(n/perNode)),
			labels: map[string]string{"app": fmt.Sprintf("a%d", i%50), "tier": "web"}, phase: "Running", pad: pad,
		}
	}
	return pods
}

// BenchmarkAnswers is what a read costs beside its call: from the bytes of the
// request to the pieces of the answer.
func BenchmarkAnswers(b *testing.B) {
	s := serving(b, nil)
	const pods, perNode = 9990, 30
	s.fill(b, "dev", herd(pods, perNode, 4800))
	c := codec{}
	asked := func(view indexv1.View) [][]byte {
		var list [][]byte
		for i := range pods / perNode {
			data, err := proto.Marshal(&indexv1.ByIndexRequest{
				Collection: "dev/pods.v1", Index: "node", Values: []string{fmt.Sprintf("node-%04d", i)}, View: view,
			})
			if err != nil {
				b.Fatal(err)
			}
			list = append(list, data)
		}
		return list
	}
	for name, view := range map[string]indexv1.View{"ByIndex30Keys": indexv1.View_VIEW_KEYS, "ByIndex30x5KB": indexv1.View_VIEW_FULL} {
		requests := asked(view)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				req := newByIndexRequest()
				if err := req.decode(requests[i*7%len(requests)]); err != nil {
					b.Fatal(err)
				}
				o, err := s.byIndex(b.Context(), req.message())
				if err != nil {
					b.Fatal(err)
				}
				req.release()
				if err := s.charge(b.Context(), o, streamCost); err != nil {
					b.Fatal(err)
				}
				parts, err := c.Marshal(o)
				if err != nil {
					b.Fatal(err)
				}
				parts.Free()
			}
		})
	}
	b.Run("Get5KB", func(b *testing.B) {
		var requests [][]byte
		for _, p := range herd(pods, perNode, 0)[:2000] {
			data, err := proto.Marshal(&indexv1.GetRequest{Collection: "dev/pods.v1", Key: p.key()})
			if err != nil {
				b.Fatal(err)
			}
			requests = append(requests, data)
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			req := newGetRequest()
			if err := req.decode(requests[i*7%len(requests)]); err != nil {
				b.Fatal(err)
			}
			o, err := s.get(b.Context(), req.message())
			if err != nil {
				b.Fatal(err)
			}
			req.release()
			parts, err := c.Marshal(o)
			if err != nil {
				b.Fatal(err)
			}
			parts.Free()
		}
	})
}
