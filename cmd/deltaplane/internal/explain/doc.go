// Package explain holds the command "deltaplane why": it asks queue, index and reflector about a
// key at the same time, and prints what core/why makes of their answers.
//
// In come a queue and a key, or a collection and a key. Out come a timeline and one sentence. A
// part that does not answer within the timeout is named, and the answer is made of the rest.
package explain
