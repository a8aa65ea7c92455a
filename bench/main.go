// Command bench measures Deltaplane beside its peers and its ceilings.
//
//	go run ./bench NAME [--quick] [-o FILE]
//
// NAME is a family of figures; without one, or with an unknown one, the
// families are listed. Whatever is compared runs interleaved (A B A B) in one
// run, each server in a child process of its own so that its CPU is measured
// alone. Every figure is one line of standard output:
//
//	figure | ours | beside it | ratio | target | ok
//
// with the median of the rounds, the least and the greatest in brackets, and, from eight rounds on,
// between which values the middle half of them lies; -o writes the same, and the machine, as JSON.
// Progress goes to standard error. The exit code is 0 when every target is met, 1 when one is
// missed, 2 when the command line was not understood, 3 when the run failed.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/deltaplane/deltaplane/bench/adopt"
	"github.com/deltaplane/deltaplane/bench/agent"
	"github.com/deltaplane/deltaplane/bench/drive"
	"github.com/deltaplane/deltaplane/bench/gateway"
	"github.com/deltaplane/deltaplane/bench/index"
	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/jobs"
	"github.com/deltaplane/deltaplane/bench/logs"
	"github.com/deltaplane/deltaplane/bench/nodes"
	"github.com/deltaplane/deltaplane/bench/queue"
	"github.com/deltaplane/deltaplane/bench/slice"
	"github.com/deltaplane/deltaplane/bench/traces"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if len(os.Args) == 3 && os.Args[1] == harness.ChildCommand {
		err = harness.ServeChild(ctx, servants(), os.Args[2], os.Stdin, os.Stdout)
	} else {
		err = harness.Run(ctx, families(), os.Args[1:], os.Stdout, os.Stderr)
	}
	stop()
	switch {
	case errors.Is(err, harness.ErrUsage):
		os.Exit(2)
	case errors.Is(err, harness.ErrMissed):
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(3)
	}
}

// families lists what can be run.
func families() []harness.Family {
	return []harness.Family{slice.Family(), queue.Family(), index.Family(), logs.Family(), nodes.Family(), agent.Family(), drive.Family(), adopt.Family(), gateway.Family(), jobs.Family(), traces.Family()}
}
