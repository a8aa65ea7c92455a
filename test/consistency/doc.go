// Package consistency compares answers of two indexer replicas with the recorded history of a
// source, while readers, indexers and reflectors are stopped, continued and killed: every event at
// or below the revision that an answer states is in it, none above its upper bound is, and nobody
// who passes on the upper bound reads an older state elsewhere.
//
// DELTAPLANE_ANSWERS=100000 and DELTAPLANE_ROUNDS=200 make it long (make consistency).
package consistency
