package store

import (
	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
)

// Object is one version of one API object. It is never changed once stored:
// lists, watches and the log share it and its bytes.
type Object struct {
	Key     string // "namespace/name", or "name" when cluster-scoped
	RV      uint64
	Decoded kinds.APIObject
	Raw     []byte // JSON beginning with kind and APIVersion
}

// Clone returns a copy of the decoded object that the caller may change.
func (o *Object) Clone() kinds.APIObject { return o.Decoded.DeepCopyObject().(kinds.APIObject) }
