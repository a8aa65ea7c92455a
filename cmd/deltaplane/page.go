package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// page reads one page of the selection and returns the token of the next.
func (s *selection) page(ctx context.Context, client indexv1.IndexServiceClient, token string) ([]*indexv1.Object, string, error) {
	if s.index == "" {
		answer, err := client.List(ctx, &indexv1.ListRequest{
			Collection: s.collection, Namespace: s.namespace, LabelSelector: s.selector,
			PageToken: token, View: s.view(), Consistency: s.consistency(),
		})
		return answer.GetObjects(), answer.GetNextPageToken(), err
	}
	if s.selector != "" {
		return nil, "", &usageError{errors.New("--index excludes --selector")}
	}
	name, value, _ := strings.Cut(s.index, "=")
	answer, err := client.ByIndex(ctx, &indexv1.ByIndexRequest{
		Collection: s.collection, Index: name, Values: []string{value},
		PageToken: token, View: s.view(), Consistency: s.consistency(),
	})
	objects := answer.GetObjects()
	if s.namespace != "" {
		kept := objects[:0]
		for _, o := range objects {
			if strings.HasPrefix(o.GetKey(), s.namespace+"/") {
				kept = append(kept, o)
			}
		}
		objects = kept
	}
	return objects, answer.GetNextPageToken(), err
}

// completeCollections completes COLLECTION from what the index serves; without a reachable index it offers nothing.
func completeCollections(cmd *cobra.Command, done []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(done) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	target, err := cmd.Flags().GetString("index-url")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var d dialFlags
	conn, err := dial(target, d.config)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer conn.Close()
	ctx, cancel := contextWithTimeout(cmd, time.Second)
	defer cancel()
	answer, err := indexv1.NewIndexServiceClient(conn).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, c := range answer.GetCollections() {
		names = append(names, fmt.Sprintf("%s\t%d objects", c.GetResource(), c.GetObjects()))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func contextWithTimeout(cmd *cobra.Command, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), timeout)
}
