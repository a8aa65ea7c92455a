// Package tracing decides which traces are recorded, and ties what a write causes to the write.
//
// A trace begins at an API event that the reflector samples ([Ratio]), or at an error that nothing
// sampled ([Errors]). Everybody else records what the caller does ([NewSampler]). The identity of
// an event's trace follows from the collection and the resource version ([EventOf]): a writer that
// was answered with a version knows which trace the event of its write has, without asking.
// [Writes] has the events of sampled writes recorded where both are in one process.
package tracing
