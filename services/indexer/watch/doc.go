// Package watch tells clients what happens to the objects that they have chosen.
//
// In come snapshots of a collection and the changes between them, from the ring of
// its store. A hub looks at each change once; watches that ask for the same are a
// group, whose messages are written once. Out go states, events, bookmarks and gaps,
// to streams. The package keeps what its readers have not taken, within limits, and
// writes to no store.
//
//	Watches.Watch ──> watcher ──join──> hub ──pass──> group ──blocks──> watcher ──> stream
//	                     ├── state: objects of a snapshot, shared by those that begin together
//	                     └── scan: the latest of each key, for those that have fallen behind
package watch
