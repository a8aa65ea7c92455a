// Package request reads requests of the Kubernetes API: which of them the gateway may answer from
// an index, and what they ask for. It knows no server and no object.
//
// What it does not understand in full it does not parse in part: such a request is for the API
// server, whose answer is then the right one, be it an error.
package request
