package indexer

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// laggingAfter is how long the revision of a collection may stand still behind a
// hole in the log before it is said. Usually that is over within moments.
const laggingAfter = 10 * time.Second

// frozenSince is when the revision began to stand still; zero when it does not.
func (c *collection) frozenSince() time.Time {
	if at := c.frozen.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// lagging reports whether the revision has stood still for too long: what is
// asked at a revision is not answered here.
func (c *collection) lagging(now time.Time) bool {
	at := c.frozenSince()
	return !at.IsZero() && now.Sub(at) > laggingAfter
}

// lag tells the reader once that the collection lags, and once that it does no more.
func (w *watcher) lag() error {
	lags := w.c.lagging(w.c.now())
	if lags == w.lags {
		return nil
	}
	notice := &indexv1.Lagging{}
	if at := w.c.frozenSince(); lags && !at.IsZero() {
		notice.FrozenSince = timestamppb.New(at)
	} else if lags {
		return nil // it is over by now
	}
	w.lags = lags
	b, err := proto.Marshal(notice)
	if err != nil {
		return err
	}
	o := newOut()
	o.head(laggingField, len(b))
	o.buf = append(o.buf, b...)
	return w.stream.SendMsg(o.frame())
}

// laggingField is the number of Lagging in a message of a watch.
const laggingField = 8
