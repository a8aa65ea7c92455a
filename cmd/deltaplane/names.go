package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// shortNames are those of Kubernetes' own resources, as its discovery has them.
var shortNames = map[string]string{
	"cm": "configmaps", "cs": "componentstatuses", "ep": "endpoints", "ev": "events", "limits": "limitranges", "ns": "namespaces", "no": "nodes",
	"pvc": "persistentvolumeclaims", "pv": "persistentvolumes", "po": "pods", "rc": "replicationcontrollers", "quota": "resourcequotas",
	"sa": "serviceaccounts", "svc": "services", "crd": "customresourcedefinitions", "crds": "customresourcedefinitions", "ds": "daemonsets",
	"deploy": "deployments", "rs": "replicasets", "sts": "statefulsets", "hpa": "horizontalpodautoscalers", "cj": "cronjobs",
	"csr": "certificatesigningrequests", "ing": "ingresses", "netpol": "networkpolicies", "pdb": "poddisruptionbudgets",
	"pc": "priorityclasses", "sc": "storageclasses",
}

// names reports whether a word, in lower case, names the resource: by its short name or its singular.
func names(word, resource string) bool {
	return shortNames[word] == resource || slices.Contains(plurals(word), resource)
}

// plurals are what the plural of a word may be; the names of resources are in lower case.
func plurals(word string) []string {
	all := []string{word, word + "s", word + "es"}
	if stem, ends := strings.CutSuffix(word, "y"); ends {
		all = append(all, stem+"ies")
	}
	return all
}

// resolve finds the collection that is meant: kubectl's short names and singulars are taken where the name itself is not
// served. A key without a namespace is one of "default" where keys have namespaces, and a namespace is ignored where they
// have none. Whatever cannot be found out is left as it is, for the service to say so.
func (s *selection) resolve(ctx context.Context, index indexv1.IndexServiceClient) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	answer, err := index.ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if err != nil && rpc.Code(err) != codes.Unimplemented {
		return err
	}
	cluster, name, qualified := strings.Cut(s.collection, "/")
	if !qualified {
		cluster, name = "", s.collection
	}
	word, rest, dotted := strings.Cut(strings.ToLower(name), ".")
	var exact, meant []*indexv1.CollectionStatus
	for _, c := range answer.GetCollections() {
		group := c.GetVersion()
		if c.GetGroup() != "" {
			group += "." + c.GetGroup()
		}
		switch {
		case qualified && cluster != c.GetCluster(), dotted && rest != c.GetGroup() && rest != group && rest != c.GetVersion():
		case word == c.GetResource():
			exact = append(exact, c)
		case names(word, c.GetResource()):
			meant = append(meant, c)
		}
	}
	found := exact
	if len(exact) == 0 && len(meant) > 0 {
		resource := meant[0].GetResource()
		for _, c := range meant {
			if c.GetResource() != resource {
				return &usageError{fmt.Errorf("%q may be %s or %s", s.collection, resource, c.GetResource())}
			}
		}
		s.collection = strings.TrimPrefix(cluster+"/", "/") + resource + strings.TrimSuffix("."+rest, ".")
		found = meant
	}
	if len(found) > 0 {
		s.scope = found[0].GetScope()
	}
	return s.place()
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
		return &usageError{fmt.Errorf("--all-namespaces: one object is of one namespace; give it as NAMESPACE/%s", s.key)}
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
		return &hintError{err, "a key without a namespace is looked for in default: -n names another"}
	}
	return err
}
