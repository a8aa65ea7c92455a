// Command deltaplane is the Kubernetes informer pipeline as network services, and the tool to look
// at it.
//
//	deltaplane up                     everything in one process, nothing else needed
//	deltaplane serve SERVICE          one service
//	deltaplane get|watch|index ...    ask the index
//	deltaplane queue ...              look into the work queues
//	deltaplane apply|delete -f FILE   change the cluster
//	deltaplane status                 the flow and its lags on one screen
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The second Ctrl-C does not wait for a clean stop.
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:], streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	stop()
	os.Exit(code)
}
