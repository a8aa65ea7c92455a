// Package devcluster is a small in-memory Kubernetes API server with a binder, so that the whole of
// Deltaplane works on a machine where nothing is installed. It speaks the Kubernetes REST protocol
// over plain HTTP: list and watch with the resource version rules clients depend on, create,
// update, patch, delete, sub-resources, discovery and tables for kubectl.
//
// What it promises is agreement with a real kube-apiserver for the behaviour a
// controller can see; test/api is one suite that runs on both. What it is not:
// it authenticates nobody, has no nodes but those that agents register, and keeps its
// state in memory, or in an append-only log when Config.DataDir is set.
//
// How it is built:
//
//	http.go        request -> route -> handler, content negotiation, Status errors
//	resource.go    the registry: one value per kind drives everything below
//	store.go       tables of immutable encoded objects under one resource version
//	history.go     the bounded event log of a table: watches, snapshots, compaction
//	list.go watch.go write.go patch.go delete.go subresource.go   the verbs
//	job.go pod.go node.go ...   defaulting and validation of one kind each
//	collect.go     owner garbage collection, namespaces, expiry of events
//	binder.go      what the scheduler does
//	wal.go         durability: written before a change is acknowledged
package devcluster
