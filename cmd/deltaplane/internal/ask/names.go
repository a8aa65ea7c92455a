package ask

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/collections"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// resolve finds the collection that is meant. A key without a namespace is one of "default" where
// keys have namespaces, and a namespace is ignored where they have none. Whatever cannot be found
// out is left as it is, for the service to say so.
func (s *selection) resolve(ctx context.Context, index indexv1.IndexServiceClient) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	answer, err := index.ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if err != nil && rpc.Code(err) != codes.Unimplemented {
		return err
	}
	s.served = answer.GetCollections()
	s.collection, s.found, err = collections.Find(s.served, s.collection)
	if err != nil {
		return err
	}
	s.scope = s.found.GetScope()
	return s.place()
}

// collectionOf is the collection that a word means, as its service takes it. That of every cluster,
// and one that is not there yet, stay as they are.
func collectionOf(ctx context.Context, index indexv1.IndexServiceClient, word string) (string, error) {
	answer, err := index.ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if rpc.Code(err) == codes.Unimplemented || rpc.Code(err) == codes.PermissionDenied {
		return word, nil // the call itself says more
	}
	if err != nil {
		return "", err
	}
	name, _, err := collections.Find(answer.GetCollections(), word)
	return name, err
}

// place gives the key its namespace.
func (s *selection) place() error {
	if s.scope == indexv1.KeyScope_KEY_SCOPE_CLUSTER {
		if len(s.namespaces) > 0 {
			s.namespaces = nil // as kubectl does
		}
		return nil
	}
	if s.key == "" || strings.Contains(s.key, "/") {
		return nil
	}
	if s.allNamespaces {
		return &cli.UsageError{Err: fmt.Errorf("--all-namespaces: one object is of one namespace; give it as NAMESPACE/%s", s.key)}
	}
	if len(s.namespaces) == 0 && s.scope != indexv1.KeyScope_KEY_SCOPE_NAMESPACED {
		return nil // it may be cluster-scoped
	}
	s.assumed = len(s.namespaces) == 0
	s.key = cmp.Or(strings.Join(s.namespaces, ""), "default") + "/" + s.key
	return nil
}

// missed adds to a key that was not found where it was looked for.
func (s *selection) missed(err error) error {
	if rpc.Reason(err) == "KEY_NOT_FOUND" && s.assumed {
		return &cli.HintError{Err: err, Hint: "a key without a namespace is looked for in default: -n names another"}
	}
	return err
}
