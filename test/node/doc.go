// Package node holds the whole-system tests of the node agent: on real containers,
// with the API server, the pipeline, the controllers and the agent around them.
package node
