package delta

import "slices"

// EverythingButMetadata is the path of all fields but kind, apiVersion and metadata, as a mirror of
// metadata alone leaves them out.
const EverythingButMetadata = "*"

// Paths of the fields that a spec leaves out by name. An object may be written back without its
// managed fields: an API server keeps them.
const (
	ManagedFields = "metadata.managedFields"
	LastApplied   = `metadata.annotations.kubectl\.kubernetes\.io/last-applied-configuration`
)

const (
	// nothingDropped is not a path: it tells a spec that leaves nothing out from a writer that does
	// not say.
	nothingDropped  = "."
	maxDroppedPaths = 128
)

// RemovedByWrite are those of the paths that writing an object back would remove at the API server,
// which keeps managed fields by itself.
func RemovedByWrite(dropped []string) []string {
	return slices.DeleteFunc(slices.Clone(dropped), func(path string) bool { return path == ManagedFields })
}
