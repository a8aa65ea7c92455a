// Package collections finds the collection that a user's word means.
//
// In come the collections of an index, and a word as kubectl takes it: a short name, a singular, a
// kind or a plural, with its cluster, version and group or without. It asks nobody.
package collections

import (
	"fmt"
	"slices"
	"strings"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
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

// Find finds the collection that is meant and the name to ask for it with: short names, singulars
// and kinds are taken where no collection has the name itself, and one that stands for several is
// refused with their names. What cannot be found out keeps its name, for the service to say so.
func Find(all []*indexv1.CollectionStatus, asked string) (name string, found *indexv1.CollectionStatus, err error) {
	cluster, name, qualified := strings.Cut(asked, "/")
	if !qualified {
		cluster, name = "", asked
	}
	word, rest, dotted := strings.Cut(strings.ToLower(name), ".")
	plurals := map[string]int{}
	var exact, meant []*indexv1.CollectionStatus
	for _, c := range all {
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
	switch {
	case len(exact) > 0:
		return asked, exact[0], nil
	case len(meant) > 1:
		return "", nil, &cli.UsageError{Err: fmt.Errorf("%q may be %s", asked, several(meant))}
	case len(meant) == 0:
		return asked, nil, nil
	}
	found = meant[0]
	if plurals[found.GetResource()] > 1 { // of a collection, too, that the word does not name
		return found.GetCollection(), found, nil
	}
	return strings.TrimPrefix(cluster+"/", "/") + found.GetResource() + strings.TrimSuffix("."+rest, "."), found, nil
}

// several are the names of collections.
func several(all []*indexv1.CollectionStatus) string {
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.GetCollection()
	}
	return strings.Join(names, " or ")
}
