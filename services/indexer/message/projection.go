package message

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/deltaplane/deltaplane/internal/fieldmask"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// Projection is how much of each object an answer holds.
type Projection struct {
	View indexv1.View
	Mask *fieldmask.Mask // nil without a field mask
}

// Content reports whether answers hold more of the objects than their keys.
func (p *Projection) Content() bool { return p.View != indexv1.View_VIEW_KEYS }

// metadataMask is VIEW_METADATA.
var metadataMask, _ = fieldmask.Parse([]string{"apiVersion", "kind", "metadata"})

// Project checks what a request asks for. Only one of view and mask may be set.
func Project(view indexv1.View, mask *fieldmaskpb.FieldMask) (Projection, error) {
	p := Projection{View: view}
	if _, ok := indexv1.View_name[int32(view)]; !ok {
		return p, rpc.InvalidArgument("view", fmt.Sprintf("%d is not a view", view))
	}
	if view == indexv1.View_VIEW_METADATA {
		p.Mask = metadataMask
	}
	if mask == nil {
		return p, nil
	}
	if view != indexv1.View_VIEW_UNSPECIFIED {
		return p, rpc.InvalidArgument("field_mask", "excludes view")
	}
	var err error
	p.Mask, err = parseMask(mask.GetPaths())
	return p, err
}

func parseMask(paths []string) (*fieldmask.Mask, error) {
	switch {
	case len(paths) == 0:
		return nil, rpc.InvalidArgument("field_mask", "has no paths")
	case len(paths) > fieldmask.MaxPaths:
		return nil, rpc.InvalidArgument("field_mask", fmt.Sprintf("%d paths, at most %d", len(paths), fieldmask.MaxPaths))
	}
	mask, faults := fieldmask.Parse(paths)
	var errs []error
	for _, f := range faults {
		errs = append(errs, rpc.InvalidArgument(fmt.Sprintf("field_mask.paths[%d]", f.Index), f.Error()))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return mask, nil
}

// Payload returns the part of an object's bytes that the projection keeps; the
// bytes themselves when that is all.
func (p *Projection) Payload(payload []byte) []byte {
	if p.Mask == nil {
		return payload
	}
	return p.Mask.Keep(payload)
}
