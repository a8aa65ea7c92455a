package watch

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// lag tells the reader once that the collection lags, and once that it does no more.
func (w *watcher) lag() error {
	lags := w.c.Lagging()
	if lags == w.lags {
		return nil
	}
	notice := &indexv1.Lagging{}
	if at := w.c.FrozenSince(); lags && !at.IsZero() {
		notice.FrozenSince = timestamppb.New(at)
	} else if lags {
		return nil // it is over by now
	}
	w.lags = lags
	b, err := proto.Marshal(notice)
	if err != nil {
		return err
	}
	o := message.New()
	o.Raw(laggingField, b)
	return w.stream.SendMsg(o.Frame())
}

// laggingField is the number of Lagging in a message of a watch.
const laggingField = 8
