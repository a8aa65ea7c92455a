//go:build linux

// E2e lets upstream Kubernetes' own end-to-end suite judge Deltaplane: it starts a real API server
// and scheduler, a containerd, and from this tree the Job controller, taint eviction and the agent
// of a node, and runs the specs of Jobs and of taint eviction there. README.md says how to use it.
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
	"syscall"
	"time"
)

// errFailed says that specs failed which had to pass; they have been printed.
var errFailed = errors.New("specs failed that have to pass")

// config is what the command line says.
type config struct {
	all      bool
	gateway  bool
	again    again
	focus    *regexp.Regexp
	limit    time.Duration
	parallel int
	dir      string
	table    string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	cfg := config{again: againNone}
	flags := flag.NewFlagSet("e2e", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&cfg.all, "all", false, "run every spec in place of the choice that has to pass; those with a result in --dir are not run again")
	flags.BoolVar(&cfg.gateway, "gateway", false, "let the specs call Deltaplane's gateway in place of the API server")
	flags.Var(&cfg.again, "again", "with --all, what is run though it has a result: none, failed or all")
	flags.Func("focus", "run only specs whose names match this regular `expression`, as often as asked", func(text string) (err error) {
		cfg.focus, err = regexp.Compile(text)
		return err
	})
	flags.DurationVar(&cfg.limit, "limit", 5*time.Minute, "time after which a spec has failed")
	flags.IntVar(&cfg.parallel, "parallel", 4, "specs at once, of those that permit it")
	flags.StringVar(&cfg.dir, "dir", filepath.Join(".tmp", "e2e"), "folder of results and logs")
	flags.StringVar(&cfg.table, "table", "", "file to write the table of all results to")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if cfg.parallel < 1 || cfg.limit <= 0 {
		return fmt.Errorf("--parallel is %d and --limit %s, want more than 0", cfg.parallel, cfg.limit)
	}
	var err error
	if cfg.dir, err = filepath.Abs(cfg.dir); err != nil {
		return err
	}
	return judge(ctx, cfg, stdout)
}

// judge builds and starts what is missing, runs the specs that are asked for, and writes the table.
func judge(ctx context.Context, cfg config, out io.Writer) (err error) {
	logs := filepath.Join(cfg.dir, "logs")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	made, err := build(ctx, cfg.dir, out)
	if err != nil {
		return err
	}
	every, err := specsOf(ctx, made.suite)
	if err != nil {
		return err
	}
	results, err := openResults(filepath.Join(cfg.dir, "results.jsonl"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, results.close()) }()
	wanted := choose(every, cfg, results)
	if len(wanted) == 0 {
		fmt.Fprintln(out, "no spec is left to run")
	} else {
		stack, err := start(ctx, made, cfg.gateway, logs, out)
		if err != nil {
			return err
		}
		failed, err := runSpecs(ctx, wanted, results, cfg.parallel, out, func(ctx context.Context, name string) result {
			return runSpec(ctx, made.suite, stack.specs, filepath.Join(logs, slug(name)), name, cfg.limit)
		})
		if err := errors.Join(err, stack.stop()); err != nil {
			return err
		}
		if failed > 0 && !cfg.all && cfg.focus == nil {
			return fmt.Errorf("%d %w; their output is in %s", failed, errFailed, logs)
		}
	}
	if cfg.table == "" {
		return nil
	}
	return writeTable(cfg, every, results, made.version)
}
