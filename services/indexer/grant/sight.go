package grant

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/authority"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// sight is a request for what the caller may see of collections, and the answer.
type sight struct {
	reach  Reach
	verbs  []string
	ids    []delta.Collection
	scopes []access.Scope
}

// Visible finds what the caller may list of what a read covers, where [Gate.List] would refuse what
// it may not.
func (g Gate) Visible(ctx context.Context, r Reach, ids ...delta.Collection) (Grant, error) {
	return g.look(ctx, &sight{reach: r, verbs: []string{list}, ids: ids})
}

// Follow is [Gate.Visible] for a watch. Whenever the answer may have become another, moved gets it,
// beside the stream's handler.
func (g Gate) Follow(ctx context.Context, r Reach, id delta.Collection, moved func(access.Scope)) (Grant, error) {
	s := &sight{reach: r, verbs: []string{list, watch}, ids: []delta.Collection{id}}
	if g.Authority != nil { // first: no change may fall in between
		rpc.Recheck(ctx, func(ctx context.Context) error {
			again, err := g.look(ctx, s)
			if err == nil {
				moved(again.Scope(id))
			}
			return err
		})
	}
	return g.look(ctx, s)
}

// look finds what is visible now.
func (g Gate) look(ctx context.Context, s *sight) (Grant, error) {
	if g.Authority == nil {
		return Grant{}, nil
	}
	version := g.Authority.Version()
	now := *s
	now.scopes = make([]access.Scope, len(s.ids))
	for i, id := range s.ids {
		var err error
		if now.scopes[i], err = g.scope(ctx, &now, id); err != nil {
			return Grant{}, err
		}
	}
	return Grant{gate: g, ids: s.ids, version: version, sight: &now}, nil
}

// scope is what is visible of one collection: all, else the namespaces of those that the request
// names, or that are suggested, in which every verb is permitted.
func (g Gate) scope(ctx context.Context, s *sight, id delta.Collection) (access.Scope, error) {
	verbs := g.verbs(&s.reach, id, s.verbs)
	everywhere := Reach{LabelSelector: s.reach.LabelSelector, FieldSelector: s.reach.fields()}
	all, err := g.hold(ctx, g.wants(&everywhere, []delta.Collection{id}, verbs...))
	if all || err != nil {
		return access.Scope{All: all}, err
	}
	candidates := s.reach.namespaces()
	if len(candidates) == 0 {
		if candidates, err = g.Authority.Namespaces(ctx, id.Cluster); err != nil {
			return access.Scope{}, err
		}
	}
	in := everywhere
	in.Namespaces = candidates
	if len(candidates) == 0 {
		return access.Scope{}, nil
	}
	wants := g.wants(&in, []delta.Collection{id}, verbs...)
	g.Authority.Expect(ctx, wants...)
	var out access.Scope
	for i, namespace := range candidates { // the wants of each stand together
		held, err := g.hold(ctx, wants[i*len(verbs):(i+1)*len(verbs)])
		if err != nil {
			return access.Scope{}, err
		}
		if held {
			out.Namespaces = append(out.Namespaces, namespace)
		}
	}
	return out, nil
}

// hold reports whether the caller may do all that is wanted.
func (g Gate) hold(ctx context.Context, wants []authority.Want) (bool, error) {
	for _, w := range wants {
		if ok, _, err := g.Authority.Holds(ctx, w); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// Limited reports whether only a part of what is read is visible.
func (g *Grant) Limited() bool {
	return g.sight != nil
}

// Print tells apart what may be seen of all collections of a read, on every replica alike; 0 is all
// of them.
func (g *Grant) Print() uint64 {
	if g.sight == nil || !slices.ContainsFunc(g.sight.scopes, func(s access.Scope) bool { return !s.All }) {
		return 0
	}
	h := fnv.New64a()
	for i, id := range g.sight.ids {
		fmt.Fprintf(h, "%s %d ", id, g.sight.scopes[i].Print())
	}
	return max(h.Sum64(), 1)
}

// Scope is what the caller may see of a collection.
func (g *Grant) Scope(id delta.Collection) access.Scope {
	if g.sight == nil {
		return access.Scope{All: true}
	}
	for i, have := range g.sight.ids {
		if have == id {
			return g.sight.scopes[i]
		}
	}
	return access.Scope{}
}
