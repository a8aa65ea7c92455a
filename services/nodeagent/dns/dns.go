// Package dns says what the containers of a pod resolve names with, by the kubelet's rules.
package dns

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The bounds of what resolvers take.
const (
	maxServers     = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

// Resolver is what stands in a resolv.conf: servers by address, domains to search in, and options
// as NAME or NAME:VALUE.
type Resolver struct{ Servers, Searches, Options []string }

// Cluster is the cluster's DNS: the addresses of its servers, and its domain. Without servers
// there is none, and pods have their node's resolver.
type Cluster struct {
	Servers []string
	Domain  string
}

// Parse reads a resolv.conf. Lines that say nothing of the three are skipped; of several lines of
// domains the last counts, of several options of one name too. The root domain is left out.
func Parse(text string) Resolver {
	var r Resolver
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 || strings.HasPrefix(words[0], "#") || strings.HasPrefix(words[0], ";") {
			continue
		}
		switch words[0] {
		case "nameserver":
			r.Servers = append(r.Servers, words[1])
		case "search":
			r.Searches = nil
			for _, domain := range words[1:] {
				if domain != "." { // as with the kubelet
					r.Searches = append(r.Searches, strings.TrimSuffix(domain, "."))
				}
			}
		case "options":
			r.Options = merged(r.Options, words[1:]...)
		}
	}
	return r
}

// Of is the resolver of a pod by its dnsPolicy and dnsConfig, given the one of its node. whole is
// false when something had to be left out because resolvers do not take as much.
func (c Cluster) Of(pod *corev1.Pod, node Resolver) (r Resolver, whole bool) {
	switch policy := pod.Spec.DNSPolicy; {
	case policy == corev1.DNSNone:
	case len(c.Servers) > 0 && (policy == corev1.DNSClusterFirstWithHostNet || policy != corev1.DNSDefault && !pod.Spec.HostNetwork):
		ns := pod.Namespace + ".svc." + c.Domain
		r = Resolver{
			Servers: c.Servers, Searches: append([]string{ns, "svc." + c.Domain, c.Domain}, node.Searches...), Options: []string{"ndots:5"},
		}
	default:
		r = node
	}
	if own := pod.Spec.DNSConfig; own != nil {
		r.Servers = slices.Concat(r.Servers, own.Nameservers)
		r.Searches = slices.Concat(r.Searches, own.Searches)
		for _, o := range own.Options {
			text := o.Name
			if o.Value != nil && *o.Value != "" {
				text += ":" + *o.Value
			}
			r.Options = merged(r.Options, text)
		}
	}
	return bounded(Resolver{Servers: once(r.Servers), Searches: once(r.Searches), Options: r.Options})
}

// once leaves the first of equal words.
func once(words []string) []string {
	var out []string
	for _, w := range words {
		if !slices.Contains(out, w) {
			out = append(out, w)
		}
	}
	return out
}

// merged are given options with others, of which each replaces the one of its name.
func merged(given []string, others ...string) []string {
	out := slices.Clone(given)
	for _, o := range others {
		name, _, _ := strings.Cut(o, ":")
		same := func(have string) bool { has, _, _ := strings.Cut(have, ":"); return has == name }
		if i := slices.IndexFunc(out, same); i >= 0 {
			out[i] = o
		} else {
			out = append(out, o)
		}
	}
	return out
}

// bounded leaves out what resolvers do not take: some abort on a domain that is too long.
func bounded(r Resolver) (out Resolver, whole bool) {
	before := len(r.Servers) + len(r.Searches)
	r.Servers = r.Servers[:min(len(r.Servers), maxServers)]
	r.Searches = slices.DeleteFunc(r.Searches[:min(len(r.Searches), maxSearches)], func(domain string) bool {
		return len(domain) > validation.DNS1123SubdomainMaxLength
	})
	for len(strings.Join(r.Searches, " ")) > maxSearchChars {
		r.Searches = r.Searches[:len(r.Searches)-1]
	}
	return r, before == len(r.Servers)+len(r.Searches)
}
