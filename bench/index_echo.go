package main

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// readRig is an indexer of the raw tier, pinned to a core, what is asked of it,
// and an echo of the answers in the same process: the same heap, the same collector.
type readRig struct {
	*published

	raw       *replica
	echoes    pool
	questions questions
}

func newReadRig(ctx context.Context, b *bench, name string) (r *readRig, err error) {
	r = &readRig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.published, err = publishInto(ctx, b, name, sourceConfig{Objects: pick(b, 3000, 9990), Templates: pick(b, 500, 600)}); err != nil {
		return r, err
	}
	if r.raw, err = r.replica(ctx, b, place{pinned: true}, indexer.TierRaw); err != nil {
		return r, err
	}
	if err = r.raw.await(ctx, r.info.Objects); err != nil {
		return r, err
	}
	r.questions = newQuestions(r.info)
	r.echoes, err = r.echo()
	return r, err
}

// echo starts an echo in the indexer's process.
func (r *readRig) echo() (pool, error) {
	var addr string
	if err := r.raw.call("echo", echoConfig{Index: r.raw.addr, Keys: r.info.Keys, Values: r.info.Values}, &addr); err != nil {
		return nil, err
	}
	return dial(addr, 1)
}

// close ends what there is of the rig.
func (r *readRig) close() error {
	err := r.echoes.Close()
	if r.raw != nil {
		err = errors.Join(err, r.raw.close())
	}
	if r.published != nil {
		err = errors.Join(err, r.published.close())
	}
	return err
}

// echoConfig is an indexer and the questions whose answers an echo repeats.
type echoConfig struct {
	Index  string   `json:"index"`
	Keys   []string `json:"keys"`
	Values []string `json:"values"`
}

// serve asks the indexer every question and starts an echo with the answers.
func (c echoConfig) serve(ctx context.Context) (addr string, err error) {
	conns, err := dial(c.Index, 1)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conns.Close()) }()
	client := indexv1.NewIndexServiceClient(conns[0])
	e := &echo{get: &answers{}, byIndex: &answers{}, objects: &answers{}, getPieces: &answers{}, objectsPieces: &answers{}, objectsNear: &answers{}}
	for _, key := range c.Keys {
		got, err := client.Get(ctx, getRequest(key))
		if err != nil {
			return "", err
		}
		whole := encoded(got)
		pieces, err := whole.inPieces(asField(got.GetObject()))
		if err != nil {
			return "", err
		}
		e.get.all, e.getPieces.all = append(e.get.all, whole), append(e.getPieces.all, pieces)
	}
	for _, node := range c.Values {
		for request, to := range map[*indexv1.ByIndexRequest]*answers{byIndexRequest(node): e.byIndex, objectsRequest(node): e.objects} {
			got, err := client.ByIndex(ctx, request)
			if err != nil {
				return "", err
			}
			if n := len(got.GetObjects()); n != podsPerNode {
				return "", fmt.Errorf("node %s has %d pods in the index, want %d", node, n, podsPerNode)
			}
			whole := encoded(got)
			to.all = append(to.all, whole)
			if to != e.objects {
				continue
			}
			objects := make([][]byte, podsPerNode)
			for i, o := range got.GetObjects() {
				objects[i] = asField(o)
			}
			pieces, err := whole.inPieces(objects...)
			if err != nil {
				return "", err
			}
			e.objectsPieces.all, e.objectsNear.all = append(e.objectsPieces.all, pieces), append(e.objectsNear.all, pieces.near())
		}
	}
	return startEcho(ctx, e)
}

// asField is an object as it stands in an answer: the pieces an indexer sends.
func asField(o *indexv1.Object) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), encoded(o).data)
}
