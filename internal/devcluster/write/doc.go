// Package write changes objects as the API does.
//
// In come decoded objects, changes of stored ones and deletions; out go the objects as they are
// stored, or Status errors. Admission, identity, defaults, validation, preconditions, finalizers
// and managed fields are applied here, to writes of clients and to those of the cluster itself.
//
// It may touch store and kinds. It knows nothing of HTTP.
package write
