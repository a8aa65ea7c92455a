package inspect

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/core/delta"
)

// logQuestion is what "logs" is asked.
type logQuestion struct {
	cli.DialFlags
	cluster, namespace, container, dir string
	previous, times                    bool
}

// NewLogs is the command "logs".
func NewLogs() *cobra.Command {
	var q logQuestion
	cmd := &cobra.Command{
		Use:   "logs [NAMESPACE/]POD",
		Short: "Print the log of a container that ran on this machine",
		Long: `Print what a container wrote, from the log files of the node agents of this machine. A log of
another machine's node is not there, and the API server is not asked.`,
		Example: `  deltaplane logs hello-x7k2p-0
  deltaplane logs default/web -c sidecar --previous`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error { return q.print(cmd, a[0]) },
	}
	q.Register(cmd.Flags())
	cmd.Flags().StringVar(&q.cluster, "cluster", "dev", "`name` of the cluster, the first part of its collections' names")
	cmd.Flags().StringVarP(&q.namespace, "namespace", "n", "default", "`namespace` of a pod whose name has none")
	cmd.Flags().StringVarP(&q.container, "container", "c", "", "`name` of the container (default: the pod's first)")
	cmd.Flags().StringVar(&q.dir, "log-dir", "", "`folder` of the containers' logs (default: that of simulated nodes of \"up\" and \"serve node\", then /var/log/pods)")
	cmd.Flags().BoolVarP(&q.previous, "previous", "p", false, "of the instance before the last one")
	cmd.Flags().BoolVar(&q.times, "timestamps", false, "begin each line with its time")
	return cmd
}

func (q *logQuestion) print(cmd *cobra.Command, key string) error {
	if !strings.Contains(key, "/") {
		key = q.namespace + "/" + key
	}
	conn, err := cli.Dial(q.Index, q.Config)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := cli.ContextWithTimeout(cmd, q.Timeout)
	defer cancel()
	pods := delta.Collection{Cluster: q.cluster, Version: "v1", Resource: "pods"}.String()
	obj, _, err := client.NewIndex(conn).Get(ctx, pods, key, client.ReadOptions{})
	if err != nil {
		return cli.Plain(err)
	}
	path, err := q.find(obj.Payload)
	if err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return copyLog(cmd.OutOrStdout(), file, q.times)
}

// find is the file of the instance that is asked for.
func (q *logQuestion) find(payload []byte) (string, error) {
	p, err := decodePod(payload)
	if err != nil {
		return "", err
	}
	var names []string
	for _, c := range slices.Concat(p.Spec.Containers, p.Spec.InitContainers) {
		names = append(names, c.Name)
	}
	name := q.container
	if name == "" && len(names) > 0 {
		name = names[0]
	}
	if !slices.Contains(names, name) {
		return "", &cli.UsageError{Err: fmt.Errorf("pod %s/%s has no container %q; there are %s", p.Namespace, p.Name, name, strings.Join(names, ", "))}
	}
	dirs := []string{q.dir}
	if q.dir == "" {
		dirs = []string{"/var/log/pods"}
		if state, err := cli.StateDir(); err == nil {
			dirs = []string{filepath.Join(state, "nodes", "logs"), dirs[0]}
		}
	}
	for _, dir := range dirs {
		folder := filepath.Join(dir, p.Namespace+"_"+p.Name+"_"+string(p.UID), name)
		instances, err := instancesIn(folder)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return "", err
		}
		back := 1
		if q.previous {
			back = 2
		}
		if len(instances) < back {
			return "", status.Errorf(codes.NotFound, "%s holds no log of that instance", folder)
		}
		return filepath.Join(folder, strconv.Itoa(instances[len(instances)-back])+".log"), nil
	}
	return "", &cli.HintError{
		Err:  status.Errorf(codes.NotFound, "no log of pod %s/%s in %s", p.Namespace, p.Name, strings.Join(dirs, " or ")),
		Hint: fmt.Sprintf("its node is %q; with --data-dir DIR, the logs of \"up\" are in DIR/nodes/logs: say so by --log-dir", p.Spec.NodeName),
	}
}

// instancesIn are the numbers of a container's instances that left a log, in order.
func instancesIn(folder string) ([]int, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, e := range entries {
		if text, ok := strings.CutSuffix(e.Name(), ".log"); ok {
			if n, err := strconv.Atoi(text); err == nil {
				all = append(all, n)
			}
		}
	}
	slices.Sort(all)
	return all, nil
}

// copyLog writes what a file in the CRI's log format holds: "TIME STREAM TAG TEXT", where
// the tag P says that the line goes on in the next record.
func copyLog(out io.Writer, in io.Reader, times bool) error {
	r := bufio.NewReader(in)
	began := false // a line that goes on
	for {
		line, err := r.ReadString('\n')
		if line != "" {
			text := strings.TrimSuffix(line, "\n")
			goesOn := false
			if fields := strings.SplitN(text, " ", 4); len(fields) == 4 && (fields[1] == "stdout" || fields[1] == "stderr") { // else it stays as it is
				text, goesOn = fields[3], fields[2] == "P"
				if times && !began {
					text = fields[0] + " " + text
				}
			}
			if began = goesOn; !began {
				text += "\n"
			}
			if _, err := io.WriteString(out, text); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
