// Package message writes the hot messages of index.proto by hand.
//
// In come objects of a snapshot and how much of them is asked for (Projection);
// out go messages that point at stored payloads instead of copying them: a Writer,
// which is sent once and used again, and a Frame, which may be sent any number of
// times. Field numbers are those of the proto; the tests read everything written here
// with the generated code. The package knows no call and no collection.
package message
