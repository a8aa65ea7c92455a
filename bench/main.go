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
// with the median of the rounds, the least and the greatest in brackets, and,
// from eight rounds on, between which values the middle half of them lies; -o
// writes the same, and the machine, as JSON. Progress goes to standard error. The exit code is 0 when every target is met, 1 when one is missed, 2
// when the command line was not understood, 3 when the run failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// errUsage is a fault of the command line that has been explained already.
var errUsage = errors.New("bad usage")

// errMissed says that a target was missed; which one has been printed.
var errMissed = errors.New("a target was missed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if len(os.Args) == 3 && os.Args[1] == childCommand {
		err = serveChild(ctx, servants(), os.Args[2], os.Stdin, os.Stdout)
	} else {
		err = run(ctx, families(), os.Args[1:], os.Stdout, os.Stderr)
	}
	stop()
	switch {
	case errors.Is(err, errUsage):
		os.Exit(2)
	case errors.Is(err, errMissed):
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(3)
	}
}

// run does what the command line says. Figures go to stdout, everything else to stderr.
func run(ctx context.Context, known []family, args []string, stdout, stderr io.Writer) error {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { explain(stderr, known); flags.PrintDefaults() }
	flags.BoolVar(&o.quick, "quick", false, "a short run (slice and log 40 s, index 50 s, nodes 60 s, queue and agent 90 s); what is left out is listed")
	flags.StringVar(&o.out, "o", "", "write the results as JSON to this `file`")
	flags.StringVar(&o.only, "only", "", "run only the parts whose name matches this `regexp`")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the generated population")
	flags.IntVar(&o.rounds, "rounds", 0, "`number` of rounds instead of what each part asks for")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file` of a cluster made by test/kube; without one the bench starts its own")
	flags.StringVar(&o.queue, "queue", "127.0.0.1:7442", "`host:port` of the running queue service that the family drive works on")
	flags.StringVar(&o.profiles, "profiles", "", "write CPU profiles of the measured servers to this `folder`")
	var names []string
	for rest := args; ; {
		if err := flags.Parse(rest); errors.Is(err, flag.ErrHelp) {
			return nil
		} else if err != nil {
			return errUsage
		}
		if flags.NArg() == 0 {
			break
		}
		names = append(names, flags.Arg(0)) // flags may stand before and after the name
		rest = flags.Args()[1:]
	}
	fam, err := choose(known, names, stderr)
	if err != nil {
		return err
	}
	if _, err := regexp.Compile(o.only); err != nil {
		fmt.Fprintf(stderr, "bench: --only: %v\n", err)
		return errUsage
	}
	return o.run(ctx, fam, stdout, stderr)
}

func choose(known []family, names []string, stderr io.Writer) (family, error) {
	for _, f := range known {
		if len(names) == 1 && f.name == names[0] {
			return f, nil
		}
	}
	switch len(names) {
	case 0:
		fmt.Fprintf(stderr, "bench: no family named\n\n")
	case 1:
		fmt.Fprintf(stderr, "bench: unknown family %q\n\n", names[0])
	default:
		fmt.Fprintf(stderr, "bench: one family at a time, not %s\n\n", strings.Join(names, ", "))
	}
	explain(stderr, known)
	return family{}, errUsage
}

func explain(w io.Writer, known []family) {
	fmt.Fprint(w, "usage: bench NAME [--quick] [-o FILE]\n\nfamilies:\n")
	for _, f := range known {
		fmt.Fprintf(w, "  %-8s %s\n", f.name, f.about)
	}
}

// families lists what can be run.
func families() []family {
	return []family{sliceFamily(), queueFamily(), indexFamily(), logFamily(), nodesFamily(), agentFamily(), driveFamily()}
}

// repoRoot is the folder of the module this is run in.
func repoRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "test", "kube", "go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not inside the repository", dir)
		}
	}
}
