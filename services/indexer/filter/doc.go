// Package filter chooses objects of a snapshot.
//
// In comes what a request says of namespaces, selectors and an index (Choice). Out
// goes a Filter made ready for one collection, and the shortest list of a snapshot's
// objects among which are all that it takes (Source). It reads snapshots alone.
package filter
