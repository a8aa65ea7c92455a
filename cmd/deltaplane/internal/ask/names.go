package ask

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// shortNames are those of Kubernetes' own resources, as its discovery has them; for collections of
// which the log does not say.
var shortNames = map[string]string{
	"cm": "configmaps", "cs": "componentstatuses", "ep": "endpoints", "ev": "events", "limits": "limitranges", "ns": "namespaces", "no": "nodes",
	"pvc": "persistentvolumeclaims", "pv": "persistentvolumes", "po": "pods", "rc": "replicationcontrollers", "quota": "resourcequotas",
	"sa": "serviceaccounts", "svc": "services", "crd": "customresourcedefinitions", "crds": "customresourcedefinitions", "ds": "daemonsets",
	"deploy": "deployments", "rs": "replicasets", "sts": "statefulsets", "hpa": "horizontalpodautoscalers", "cj": "cronjobs",
	"csr": "certificatesigningrequests", "ing": "ingresses", "netpol": "networkpolicies", "pdb": "poddisruptionbudgets",
	"pc": "priorityclasses", "sc": "storageclasses",
}

// names reports whether a word, in lower case, names the collection's resource: by its short name,
// its singular or its kind.
func names(word string, c *indexv1.CollectionStatus) bool {
	if said := c.GetNames(); len(said) > 0 {
		return slices.Contains(said, word)
	}
	return shortNames[word] == c.GetResource() || slices.Contains(plurals(word), c.GetResource())
}

// plurals are what the plural of a word may be; the names of resources are in lower case.
func plurals(word string) []string {
	all := []string{word, word + "s", word + "es"}
	if stem, ends := strings.CutSuffix(word, "y"); ends {
		all = append(all, stem+"ies")
	}
	return all
}

// resolve finds the collection that is meant: short names, singulars and kinds are taken as by
// kubectl where no collection has the name itself, and one that stands for several is refused with
// their names. A key without a namespace is one of "default" where keys have namespaces, and a
// namespace is ignored where they have none. Whatever cannot be found out is left as it is, for the
// service to say so.
func (s *selection) resolve(ctx context.Context, index indexv1.IndexServiceClient) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
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
	plurals := map[string]int{}
	var exact, meant []*indexv1.CollectionStatus
	for _, c := range answer.GetCollections() {
		s.defined = s.defined || c.GetGroup() == definitions.Group && c.GetResource() == definitions.Resource
		group := c.GetVersion()
		if c.GetGroup() != "" {
			group += "." + c.GetGroup()
		}
		if qualified && cluster != c.GetCluster() || dotted && rest != c.GetGroup() && rest != group && rest != c.GetVersion() {
			continue
		}
		plurals[c.GetResource()]++
		switch {
		case word == c.GetResource():
			exact = append(exact, c)
		case names(word, c):
			meant = append(meant, c)
		}
	}
	found := exact
	if len(exact) == 0 && len(meant) > 0 {
		if len(meant) > 1 {
			return &cli.UsageError{Err: fmt.Errorf("%q may be %s", s.collection, several(meant))}
		}
		found = meant
		s.collection = strings.TrimPrefix(cluster+"/", "/") + meant[0].GetResource() + strings.TrimSuffix("."+rest, ".")
		if plurals[meant[0].GetResource()] > 1 { // of a collection, too, that the word does not name
			s.collection = meant[0].GetCollection()
		}
	}
	if len(found) > 0 {
		s.found, s.scope = found[0], found[0].GetScope()
	}
	return s.place()
}

// several are the names of collections.
func several(all []*indexv1.CollectionStatus) string {
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.GetCollection()
	}
	return strings.Join(names, " or ")
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
