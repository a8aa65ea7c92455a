// Package admin answers operators: about queues, about keys and about what happened to them.
//
// In come the calls of the command line and of consoles. Out go what the store holds, read without
// a dispatcher ([Reader]), and the outcome of an operator's operations.
//
// It may touch transaction, history, the engine, wire and core. It knows no stream and no session.
package admin
