// Package payload keeps the bytes of a collection's objects in memory, as they
// are served or compressed.
//
// # Raw
//
// A [Slab] copies payloads one behind the other into segments without pointers
// and hands out parts of them. That is one copy at ingest, and saves memory:
// the buffer a client library delivers holds the headers too, and is rounded up
// to an allocation class; both would stay for as long as the object does.
// Responses point at the segments, so nothing is copied to answer. Segments lie
// on large pages where the system has some.
//
// A segment lives for as long as anything points into it: the store, a snapshot
// that a page token pins, a response on its way. The collector counts that, and
// no reader has to. Payloads that are replaced leave holes; [Slab.Sparse] tells
// which segments are mostly holes, and their owner puts what is left in them
// somewhere else.
//
// # Compact
//
// A [Dictionary] compresses objects one by one with zstd against samples of
// their own collection, so that each can be read alone. Objects made from one
// template differ in a few hundred bytes, and whole objects make better
// dictionaries than fragments of many, since a match then runs on for most of
// the object. Several versions may be in use at a time: each stored object
// points at the one it was written with, which is how none is lost before its
// last object.
package payload
