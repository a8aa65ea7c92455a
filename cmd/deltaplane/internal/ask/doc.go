// Package ask holds the commands that read the index: get, watch and index.
//
// In comes a selection: a collection by any of its names, keys, namespaces, selectors or an index
// and its values. Out go the objects that the index service has, as lists or as a watch. Only
// "index add" and "index remove" change anything: which indexes there are.
package ask
