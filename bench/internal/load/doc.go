// Package load calls servers: closed and open loops, pools of connections, queue cycles, and the
// echo and asynq beside which ours are measured.
//
// In come connections, methods and requests. Out go rates, latencies and the CPU that a call took.
package load
