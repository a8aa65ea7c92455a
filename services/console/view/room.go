package view

import (
	"errors"
	"sync/atomic"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// mostKept is how many keys of collections are kept for one caller, in all views together.
const mostKept = 1_000_000

// errTooManyKeys says that a view has more keys than there is room for.
var errTooManyKeys = rpc.Status(errFull, []rpc.Rule{{Is: errFull, Code: codes.ResourceExhausted, Reason: "TOO_MANY_KEYS"}})

var errFull = errors.New("what the pages of this caller choose together has more objects than a console keeps: choose by namespace, label or index, or close other pages")

// room counts what is kept. It is safe for concurrent use.
type room struct {
	most int64
	kept atomic.Int64
}

// take takes room for one; false where there is none.
func (r *room) take() bool {
	if r.kept.Add(1) <= r.most {
		return true
	}
	r.kept.Add(-1)
	return false
}

// free gives room back.
func (r *room) free(n int) { r.kept.Add(-int64(n)) }
