// Package consistency finds the snapshot that answers a request: the latest one, or
// the first that is as the request asks, within the time that it may wait. It reads
// snapshots, and holds nothing.
package consistency
