package harness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// ErrUsage is a fault of the command line that has been explained already.
var ErrUsage = errors.New("bad usage")

// ErrMissed says that a target was missed; which one has been printed.
var ErrMissed = errors.New("a target was missed")

// Run does what the command line says. Figures go to stdout, everything else to stderr.
func Run(ctx context.Context, known []Family, args []string, stdout, stderr io.Writer) error {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { explain(stderr, known); flags.PrintDefaults() }
	flags.BoolVar(&o.Quick, "quick", false, "a short run (slice and log 40 s, index 50 s, nodes 60 s, queue and agent 90 s); what is left out is listed")
	flags.BoolVar(&o.TLS, "tls", false, "gRPC over TLS, on both sides of whatever is compared; ghz is left out")
	flags.StringVar(&o.out, "o", "", "write the results as JSON to this `file`")
	flags.StringVar(&o.only, "only", "", "run only the parts whose name matches this `regexp`")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the generated population")
	flags.IntVar(&o.Rounds, "rounds", 0, "`number` of rounds instead of what each part asks for")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `file` of a cluster made by test/kube; without one the bench starts its own")
	flags.StringVar(&o.Queue, "queue", "127.0.0.1:7442", "`host:port` of the running queue service that the family drive works on")
	flags.StringVar(&o.profiles, "profiles", "", "write CPU profiles of the measured servers to this `folder`")
	var names []string
	for rest := args; ; {
		if err := flags.Parse(rest); errors.Is(err, flag.ErrHelp) {
			return nil
		} else if err != nil {
			return ErrUsage
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
		return ErrUsage
	}
	return o.run(ctx, fam, stdout, stderr)
}

func choose(known []Family, names []string, stderr io.Writer) (Family, error) {
	for _, f := range known {
		if len(names) == 1 && f.Name == names[0] {
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
	return Family{}, ErrUsage
}

func explain(w io.Writer, known []Family) {
	fmt.Fprint(w, "usage: bench NAME [--quick] [-o FILE]\n\nfamilies:\n")
	for _, f := range known {
		fmt.Fprintf(w, "  %-8s %s\n", f.Name, f.About)
	}
}
