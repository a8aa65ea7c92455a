// Package read answers lists.
//
// In come the parameters of a list or watch; out go pages of stored objects, with the token of the
// next page. A list at a version from the future waits a little for it.
//
// It may touch store and kinds, and writes nothing.
package read
