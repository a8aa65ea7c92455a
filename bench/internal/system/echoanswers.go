package system

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// ObjectsRequest asks for the pods of a node with their payloads.
func ObjectsRequest(node string) *indexv1.ByIndexRequest {
	r := ByIndexRequest(node)
	r.View = indexv1.View_VIEW_FULL
	return r
}

// EchoConfig is an indexer and the questions whose answers an echo repeats.
type EchoConfig struct {
	Index  string   `json:"index"`
	Keys   []string `json:"keys"`
	Values []string `json:"values"`
}

// serve asks the indexer every question and starts an echo with the answers.
func (c EchoConfig) serve(ctx context.Context) (addr string, err error) {
	conns, err := load.Dial(c.Index, 1)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conns.Close()) }()
	client := indexv1.NewIndexServiceClient(conns[0])
	e := &load.Echo{Get: &load.Answers{}, ByIndex: &load.Answers{}, Objects: &load.Answers{}, GetPieces: &load.Answers{}, ObjectsPieces: &load.Answers{}, ObjectsNear: &load.Answers{}}
	for _, key := range c.Keys {
		got, err := client.Get(ctx, GetRequest(key))
		if err != nil {
			return "", err
		}
		whole := Encoded(got)
		pieces, err := whole.InPieces(asField(got.GetObject()))
		if err != nil {
			return "", err
		}
		e.Get.All, e.GetPieces.All = append(e.Get.All, whole), append(e.GetPieces.All, pieces)
	}
	for _, node := range c.Values {
		for request, to := range map[*indexv1.ByIndexRequest]*load.Answers{ByIndexRequest(node): e.ByIndex, ObjectsRequest(node): e.Objects} {
			got, err := client.ByIndex(ctx, request)
			if err != nil {
				return "", err
			}
			if n := len(got.GetObjects()); n != population.PodsPerNode {
				return "", fmt.Errorf("node %s has %d pods in the index, want %d", node, n, population.PodsPerNode)
			}
			whole := Encoded(got)
			to.All = append(to.All, whole)
			if to != e.Objects {
				continue
			}
			objects := make([][]byte, population.PodsPerNode)
			for i, o := range got.GetObjects() {
				objects[i] = asField(o)
			}
			pieces, err := whole.InPieces(objects...)
			if err != nil {
				return "", err
			}
			e.ObjectsPieces.All, e.ObjectsNear.All = append(e.ObjectsPieces.All, pieces), append(e.ObjectsNear.All, pieces.Near())
		}
	}
	return load.StartEcho(ctx, e)
}

// asField is an object as it stands in an answer: the pieces an indexer sends.
func asField(o *indexv1.Object) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), Encoded(o).Data)
}
