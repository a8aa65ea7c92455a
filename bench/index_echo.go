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
	e := &echo{get: &answers{}, byIndex: &answers{}, objects: &answers{}}
	for _, key := range c.Keys {
		got, err := client.Get(ctx, getRequest(key))
		if err != nil {
			return "", err
		}
		e.get.all = append(e.get.all, encoded(got))
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
			to.all = append(to.all, encoded(got))
		}
	}
	return startEcho(ctx, e)
}
