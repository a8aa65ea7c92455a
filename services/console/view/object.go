package view

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
)

// Object shows one object.
func (h *Hub) Object(ctx context.Context, v *consolev1.ObjectView, changed func()) (Reader, error) {
	key, err := delta.ParseKey(v.GetKey())
	if err != nil {
		return nil, rpc.InvalidField("key", err)
	}
	collection := h.resolve(ctx, v.GetCollection())
	s, release, err := h.share("object\x00"+collection+"\x00"+string(key), func() source {
		return &object{h: h, collection: collection, key: key, again: newAgain()}
	})
	if err != nil {
		return nil, err
	}
	return s.(*object).read(changed, release), nil //nolint:forcetypeassert // as in polled
}

// object is one object, by a watch where the caller may watch, and else asked again and again.
type object struct {
	latest
	again
	h          *Hub
	collection string
	key        delta.Key
	// What follows is for run alone.
	last           client.Object     // the last version that was there
	present, known bool              // whether it is there, and whether that is known
	shown          *consolev1.Object // never changed
}

func (o *object) run(ctx context.Context) {
	options := client.WatchOptions{
		Namespace: o.key.Namespace(), FieldSelector: "metadata.name=" + o.key.Name(), Log: o.h.log, BookmarkEvery: time.Second,
		OnRetry: func(r client.WatchRetry) {
			if !errors.Is(r.Err, client.ErrStreamEnded) {
				o.fail(r.Err)
			}
		},
	}
	for ctx.Err() == nil {
		wait := againAfter
		o.present, o.known = false, false
		for e, err := range o.h.index.Watch(ctx, o.collection, options) {
			if err != nil {
				wait = o.without(ctx, err)
				break
			}
			o.take(&e)
		}
		o.pause(ctx, wait)
	}
}

func (o *object) take(e *client.Event) {
	switch e.Type {
	case client.EventAdded, client.EventUpdated:
		o.last, o.present, o.known = e.Object, true, true
	case client.EventDeleted:
		if e.Object.Payload != nil {
			o.last = e.Object
		}
		o.present, o.known = false, true
	case client.EventGap:
		o.present, o.known = false, false
	case client.EventInitialEnd:
		o.known = true
	case client.EventBookmark: // all that comes of a watch that was resumed, where nothing has changed
		if !o.failing() {
			return
		}
	}
	if o.known {
		o.show()
	}
}

// failing reports whether a failure is shown.
func (o *object) failing() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state.GetFailure() != nil
}

// without asks for an object that may not be watched, and returns when to ask again.
func (o *object) without(ctx context.Context, refused error) time.Duration {
	if rpc.Code(refused) != codes.PermissionDenied {
		o.fail(refused)
		return againAfter
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	found, _, err := o.h.index.Find(ctx, o.collection, string(o.key), client.ReadOptions{})
	switch {
	case err != nil:
		o.fail(err)
	case found == nil:
		o.present = false
		o.show()
	default:
		o.last, o.present = *found, true
		o.show()
	}
	return every
}

// show shows the last version.
func (o *object) show() {
	out := &consolev1.Object{
		Collection: o.collection, Key: string(o.key), Present: o.present, ResourceVersion: o.last.ResourceVersion, Uid: o.last.UID, Quarantined: o.last.Quarantined,
	}
	if len(o.last.Payload) > 0 {
		text, err := yaml.JSONToYAML(o.last.Payload)
		if err != nil {
			text = o.last.Payload
		}
		out.Yaml = string(text)
	}
	out.SeenAt = timestamppb.Now()
	if was := o.shown; was != nil && was.GetResourceVersion() == out.GetResourceVersion() && was.GetPresent() == out.GetPresent() && was.GetYaml() == out.GetYaml() {
		out.SeenAt = was.GetSeenAt()
	}
	o.shown = out
	o.set(&consolev1.OpenResponse{Content: &consolev1.OpenResponse_Object{Object: out}})
}
