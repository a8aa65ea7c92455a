package client

import (
	"context"
	"errors"
	"iter"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// Page returns one page: the first, or the one that a token names. The options
// other than PageSize, AtLeast and Timeout must stay the same from page to page.
// With [ErrSnapshotGone], what the pages came from is not kept any more, or not on
// any replica that was asked: the Next of the page returned then goes on behind the
// last key, in a newer snapshot.
func (x *Index) Page(ctx context.Context, collection string, o ListOptions, token string) (Page, error) {
	return x.visit(ctx, &rpc.Place{}, collection, o, token)
}

// visit is Page of a listing that stays at a place.
func (x *Index) visit(ctx context.Context, at *rpc.Place, collection string, o ListOptions, token string) (p Page, err error) {
	err = repeat(ctx, at, token, func(ctx context.Context) error {
		p, err = x.page(ctx, collection, o, token)
		return err
	})
	if err != nil && rpc.Reason(err) == string(errSnapshotGone) {
		p.Next = rpc.Info(err).GetMetadata()["page_token"]
	}
	return p, wrap(err, "list %s", collection)
}

// A connection of [Dial] brings the pages of a listing back to their replica. On
// others they may come to any, so that the same token is tried as often as it
// takes to meet one of a few replicas; each refusal costs a server nothing.
const mostRepeats = 16

// repeat calls for the page of a token until a replica answers that has its
// snapshot, or says that it had.
func repeat(ctx context.Context, at *rpc.Place, token string, call func(context.Context) error) error {
	for n := 0; ; n++ {
		err := call(at.Call(ctx))
		if token == "" || n == mostRepeats || rpc.Reason(err) != string(errSnapshotGone) {
			return err
		}
		if where := rpc.Info(err).GetMetadata()["snapshot"]; where == "expired" || where == "scope" {
			return err
		}
		at.Leave()
	}
}

// oneSnapshot reads pages from their first until they all came from one snapshot.
func oneSnapshot(read func(*rpc.Place) error) error {
	for attempt := 1; ; attempt++ {
		err := read(&rpc.Place{})
		if err == nil || !errors.Is(err, ErrSnapshotGone) || attempt == 5 {
			return err
		}
	}
}

// List returns every object that matches, in key order, and the bounds they
// were read at, which are zero with Clusters. The pages come from one snapshot, of
// whichever replica gave the first; when it is gone before the end (a replica
// restarted), the listing begins again.
func (x *Index) List(ctx context.Context, collection string, o ListOptions) ([]Object, Bounds, error) {
	objs, last, err := x.whole(ctx, collection, o)
	return objs, last.Bounds, err
}

// ListClusters is List for options with Clusters, and returns the bounds of every
// collection of the answer.
func (x *Index) ListClusters(ctx context.Context, collection string, o ListOptions) ([]Object, Reading, error) {
	objs, last, err := x.whole(ctx, collection, o)
	return objs, last.Reading, err
}

func (x *Index) whole(ctx context.Context, collection string, o ListOptions) (all []Object, last Page, err error) {
	if err := o.whole(); err != nil {
		return nil, Page{}, wrap(err, "list %s", collection)
	}
	err = oneSnapshot(func(at *rpc.Place) error {
		all = nil
		for token := ""; ; token = last.Next {
			var err error
			if last, err = x.visit(ctx, at, collection, o, token); err != nil {
				all, last = nil, Page{}
				return err
			}
			if all = append(all, last.Objects...); last.Next == "" {
				return nil
			}
		}
	})
	return all, last, err
}

// All yields every object that matches, in key order, a page at a time. When a
// page's snapshot is gone it goes on behind the last key in a newer one, which holds
// all that the pages before did, so the whole need not be of one revision. It ends after an error.
func (x *Index) All(ctx context.Context, collection string, o ListOptions) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		err := x.pages(ctx, collection, o, func(objs []Object, _ Bounds) error {
			for _, obj := range objs {
				if !yield(obj, nil) {
					return errEnough
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			yield(Object{}, err)
		}
	}
}

var errEnough = errors.New("client: enough")

// pages visits one page after the other, going on from newer snapshots.
func (x *Index) pages(ctx context.Context, collection string, o ListOptions, visit func([]Object, Bounds) error) error {
	if err := o.whole(); err != nil {
		return wrap(err, "list %s", collection)
	}
	gone := 0
	var at rpc.Place
	for token := ""; ; {
		p, err := x.visit(ctx, &at, collection, o, token)
		if err != nil && p.Next != "" && gone < 5 {
			token = p.Next
			gone++
			continue
		}
		if err != nil {
			return err
		}
		gone = 0
		if err := visit(p.Objects, p.Bounds); err != nil {
			return err
		}
		if token = p.Next; token == "" {
			return nil
		}
	}
}

// IndexValue is a value of an index, and how many keys are filed under it.
type IndexValue struct {
	Value string
	Keys  int64
}

// IndexValues returns the values of an index that begin with a prefix and have at
// least one key, sorted, from one snapshot.
func (x *Index) IndexValues(ctx context.Context, collection, index, prefix string, o ReadOptions) (all []IndexValue, at Bounds, err error) {
	err = oneSnapshot(func(place *rpc.Place) error {
		all = nil
		for token := ""; ; {
			var resp *indexv1.ListIndexFuncValuesResponse
			err := repeat(ctx, place, token, func(ctx context.Context) (err error) {
				resp, err = x.c.ListIndexFuncValues(ctx, &indexv1.ListIndexFuncValuesRequest{
					Collection: collection, Index: index, Prefix: prefix, PageToken: token, Consistency: o.consistency(), Strict: o.Strict, VisibleOnly: o.VisibleOnly,
				})
				return err
			})
			if err != nil {
				all = nil
				return wrap(err, "index values %s %s", collection, index)
			}
			o.unindexed(resp.GetUnindexed())
			for _, v := range resp.GetValues() {
				all = append(all, IndexValue{Value: v.GetValue(), Keys: v.GetKeys()})
			}
			if token = resp.GetNextPageToken(); token == "" {
				at = fromBounds(resp.GetRevision(), resp.GetUpper())
				return nil
			}
		}
	})
	return all, at, err
}
