package main

import (
	"context"
	"errors"
	"fmt"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

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
		pieces, err := whole.inPieces(got.GetObject().GetPayload())
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
			payloads := make([][]byte, podsPerNode)
			for i, o := range got.GetObjects() {
				payloads[i] = o.GetPayload()
			}
			pieces, err := whole.inPieces(payloads...)
			if err != nil {
				return "", err
			}
			e.objectsPieces.all, e.objectsNear.all = append(e.objectsPieces.all, pieces), append(e.objectsNear.all, pieces.near())
		}
	}
	return startEcho(ctx, e)
}
