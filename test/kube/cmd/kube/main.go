// Command kube builds and runs a real Kubernetes cluster for tests, from Go modules only. Run it
// without arguments for its commands.
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
	"strings"
	"syscall"
	"time"

	"github.com/deltaplane/deltaplane/test/kube/build"
	"github.com/deltaplane/deltaplane/test/kube/cluster"
)

const usage = `usage: kube COMMAND [flags]

  build [--suite]       compile etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl and kwok,
                        or upstream's end-to-end tests, e2e.test, and print the folder
  up [--detach] [...]   start an empty cluster and run it until Ctrl-C; with --detach, until "kube down"
  status                list the parts and their processes
  check                 run pods, a failing pod and a Job's deletion through the running cluster
  seed < FILE           write pods and replica sets, one JSON object a line, straight into etcd
  compact               make etcd forget all versions but the present one, which is printed
  save --to FOLDER      copy what etcd holds; the cluster must have been started with --detach
  restore --from FOLDER put such a copy back: versions go back, too
  kubeconfig            print the path of the running cluster's kubeconfig
  down                  stop the cluster, no matter who started it

The exit code is 0 on success, 1 when the command failed, 2 when it was not understood.
"up" prints one line to standard output, so that a shell can do: eval "$(kube up --detach)"
`

// errUsage is a fault of the command line that has been explained already.
var errUsage = errors.New("bad usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, errUsage):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "kube:", err)
		os.Exit(1)
	}
}

// run does one command. Results go to stdout, progress and errors of usage to stderr.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return errUsage
	}
	cache, err := build.CacheDir()
	if err != nil {
		return err
	}
	flags := flag.NewFlagSet("kube "+args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	cfg := cluster.Config{Out: stderr, Nodes: 5}
	saved, suite := "", false
	command := map[string]func() error{
		"build": func() error { return buildAll(ctx, suite, stdout, stderr) },
		"up":    func() error { return up(ctx, cfg, stdout, stderr) },
		"down":  func() error { return cluster.Down(ctx, cfg.Dir) },
		"status": func() error {
			parts, err := cluster.Status(cfg.Dir)
			for _, p := range parts {
				fmt.Fprintf(stdout, "%-24s  %s\n", p.Name, describe(p))
			}
			return err
		},
		"check": func() error { return cluster.Check(ctx, cfg.Dir, stdout) },
		"seed": func() error {
			began := time.Now()
			n, err := cluster.Seed(ctx, cfg.Dir, stdin)
			fmt.Fprintf(stderr, "%d objects written in %.1fs\n", n, time.Since(began).Seconds())
			return err
		},
		"compact": func() error {
			revision, err := cluster.Compact(ctx, cfg.Dir)
			if err == nil {
				fmt.Fprintln(stdout, revision)
			}
			return err
		},
		"save":    func() error { return cluster.Save(ctx, cfg.Dir, saved) },
		"restore": func() error { return cluster.Restore(ctx, cfg.Dir, saved) },
		"kubeconfig": func() error {
			running, err := cluster.Running(cfg.Dir)
			if err == nil && !running {
				err = fmt.Errorf("%w in %s: start one with kube up", cluster.ErrNotRunning, cfg.Dir)
			}
			if err == nil {
				fmt.Fprintln(stdout, cluster.Kubeconfig(cfg.Dir))
			}
			return err
		},
	}[args[0]]
	if command == nil {
		fmt.Fprintf(stderr, "kube: unknown command %q\n\n%s", args[0], usage)
		return errUsage
	}
	if args[0] != "build" {
		flags.StringVar(&cfg.Dir, "dir", filepath.Join(cache, "run"), "folder of the cluster's files")
	}
	switch args[0] {
	case "build":
		flags.BoolVar(&suite, "suite", false, "upstream's end-to-end tests in place of the programs")
	case "save":
		flags.StringVar(&saved, "to", "", "folder to make, with the copy in it")
	case "restore":
		flags.StringVar(&saved, "from", "", "folder that save made")
	case "up":
		flags.IntVar(&cfg.Nodes, "nodes", cfg.Nodes, "simulated nodes, of 8 CPUs, 32 GiB and 110 pods each")
		flags.IntVar(&cfg.Zones, "zones", 0, "zones the nodes are in, evenly: z1, z2 ...; 0 leaves the label out")
		flags.IntVar(&cfg.LeaseSeconds, "lease-seconds", 40, "duration of the nodes' leases; they are renewed four times as often")
		flags.StringVar(&cfg.Controllers, "controllers", cluster.DefaultControllers, "controllers of kube-controller-manager; '*' for those it runs by default")
		flags.Func("api-arg", "further `argument` of kube-apiserver; may be repeated", appendTo(&cfg.APIServerArgs))
		flags.Func("manager-arg", "further `argument` of kube-controller-manager; may be repeated", appendTo(&cfg.ManagerArgs))
		flags.BoolVar(&cfg.Detach, "detach", false, "return when the cluster is ready, and let it run")
		flags.IntVar(&cfg.Port, "port", 0, "port of the API server on 127.0.0.1; 0 picks a free one")
		flags.IntVar(&cfg.EtcdPort, "etcd-port", 0, "port of etcd on 127.0.0.1; 0 picks a free one")
		flags.IntVar(&cfg.EtcdPeerPort, "etcd-peer-port", 0, "port of etcd for peers on 127.0.0.1; 0 picks a free one")
	}
	if err := flags.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return errUsage
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "kube %s: unexpected argument %q\n", args[0], flags.Arg(0))
		return errUsage
	}
	if (args[0] == "save" || args[0] == "restore") && saved == "" {
		fmt.Fprintf(stderr, "kube %s: which folder? See kube %s --help\n", args[0], args[0])
		return errUsage
	}
	if cfg.Nodes < 0 {
		fmt.Fprintf(stderr, "kube up: --nodes is %d, want 0 or more\n", cfg.Nodes)
		return errUsage
	}
	if cfg.Nodes == 0 {
		cfg.Nodes = -1 // to the configuration zero means the default
	}
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return err
	}
	return command()
}

func appendTo(list *[]string) func(string) error {
	return func(text string) error {
		*list = append(*list, text)
		return nil
	}
}

func describe(p cluster.Part) string {
	if p.PID == 0 {
		return "not running"
	}
	return fmt.Sprintf("process %d", p.PID)
}

// findModule is the module's folder, at or above the working directory.
func findModule() (build.Module, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	return build.FindModule(wd)
}

// ensure builds what is missing in the cache and returns its folder.
func ensure(ctx context.Context, stderr io.Writer) (string, error) {
	module, err := findModule()
	if err != nil {
		return "", err
	}
	return build.Ensure(ctx, module, stderr)
}

func buildAll(ctx context.Context, suite bool, stdout, stderr io.Writer) error {
	module, err := findModule()
	if err != nil {
		return err
	}
	made := build.Ensure
	if suite {
		made = build.EnsureSuite
	}
	bin, err := made(ctx, module, stderr)
	if err == nil {
		fmt.Fprintln(stdout, bin)
	}
	return err
}

func up(ctx context.Context, cfg cluster.Config, stdout, stderr io.Writer) error {
	began := time.Now()
	bin, err := ensure(ctx, stderr)
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "  %-16s ready in %4.1fs  %s\n", "programs", time.Since(began).Seconds(), bin)
	cfg.Bin = bin
	c, err := cluster.Up(ctx, cfg)
	if errors.Is(err, cluster.ErrRunning) && cfg.Detach {
		if running, statusErr := cluster.Running(cfg.Dir); running && statusErr == nil {
			fmt.Fprintln(stderr, "a cluster already runs there; it is left as it is")
			fmt.Fprintln(stdout, export(cluster.Kubeconfig(cfg.Dir)))
			return nil
		}
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, export(c.Kubeconfig()))
	if cfg.Detach {
		return c.Leave()
	}
	fmt.Fprintln(stderr, "running; Ctrl-C stops it")
	err = c.Wait(ctx)
	fmt.Fprintln(stderr, "stopping")
	return errors.Join(err, c.Stop())
}

// export is the line of a shell that makes kubectl use the file.
func export(kubeconfig string) string {
	return "export KUBECONFIG='" + strings.ReplaceAll(kubeconfig, "'", `'\''`) + "'"
}
