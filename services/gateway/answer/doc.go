// Package answer writes what an index has as an API server would: lists, objects and watches in
// JSON, from the bytes that are stored.
package answer
