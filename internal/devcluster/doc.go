// Package devcluster is a small in-memory Kubernetes API server with a binder, so that the whole of
// Deltaplane works on a machine where nothing is installed. It speaks the Kubernetes REST protocol
// over HTTP: list and watch with the resource version rules clients depend on, create,
// update, patch, delete, sub-resources, discovery and tables for kubectl.
//
// What it promises is agreement with a real kube-apiserver for the behaviour a
// controller can see; test/api is one suite that runs on both. What it is not:
// it authorizes nobody, has no nodes but those that agents register, and keeps its
// state in memory, or in an append-only log when Config.DataDir is set.
//
// It holds the configuration and the wiring. What happens is in its packages, along the way of a
// request; each says in its documentation what comes in, what goes out and what it may touch.
// Imports point from left to right alone:
//
//	                         ┌─> write ─┐
//	devcluster ─┬─> serve ───┤          ├─> store ─> kinds
//	(config)    └─> control ─┴─> read ──┘
//
// A write is in the log before it is visible, and visible before it is acknowledged. Readers and
// watchers never hold a writer back.
package devcluster
