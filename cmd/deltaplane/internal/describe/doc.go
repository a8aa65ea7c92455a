// Package describe is the command "describe": what an object says of itself, and what is known of
// it here.
//
// In come a collection by any of its names and a key. Out go an object's metadata, conditions, the
// useful fields of its kind, its Events, how current it is and the queues that it woke. Values of
// secrets never go out.
package describe
