// Package explain asks queue, index and reflector about a key at the same time, for what core/why
// makes of their answers.
//
// In come a queue and a key, or a collection and a key. Out come facts, or a whole answer for each
// key that is known. A part that does not answer in time is named, and the rest is made without it.
package explain
