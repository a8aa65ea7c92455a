package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/deltaplane/deltaplane/test/kube/build"
)

// Compact makes the etcd of the running cluster in dir forget every version but the present one,
// and returns that. The API server does so every five minutes. Watches and pages that the API
// server does not serve from its cache (those of events, for one) have then expired.
func Compact(ctx context.Context, dir string) (revision int64, err error) {
	etcd, err := etcdOf(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	now, err := etcd.Get(ctx, "/", clientv3.WithCountOnly())
	if err == nil {
		revision = now.Header.Revision
		_, err = etcd.Compact(ctx, revision)
	}
	if err != nil {
		return 0, fmt.Errorf("cluster: compact etcd: %w", err)
	}
	return revision, nil
}

// etcdOf is a client of the etcd of the running cluster in dir.
func etcdOf(ctx context.Context, dir string) (*clientv3.Client, error) {
	running, err := Running(dir)
	if err != nil {
		return nil, err
	}
	if !running {
		return nil, fmt.Errorf("%w in %s", ErrNotRunning, dir)
	}
	address, err := os.ReadFile(folder(dir).path("config", "etcd"))
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	etcd, err := clientv3.New(clientv3.Config{
		Context: ctx, Endpoints: []string{strings.TrimSpace(string(address))},
		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())},
	})
	if err != nil {
		return nil, fmt.Errorf("cluster: etcd: %w", err)
	}
	return etcd, nil
}

// Save copies what the cluster in dir holds to the folder to, which must not exist. Only etcd is
// killed for that, and started again; its versions go on. The cluster must be detached: one that is
// supervised ends with its first part.
func Save(ctx context.Context, dir, to string) error {
	return still(ctx, dir, []string{build.Etcd}, func(data string) error { return os.CopyFS(to, os.DirFS(data)) })
}

// Restore gives the cluster in dir what Save copied, and starts all of it again, as after a
// disaster: what was written since is gone, and its versions will be given again, to other states.
func Restore(ctx context.Context, dir, from string) error {
	if _, err := os.Stat(from); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return still(ctx, dir, startOrder, func(data string) error {
		return cmp.Or(os.RemoveAll(data), os.CopyFS(data, os.DirFS(from)))
	})
}

// still calls change with the folder of etcd's data while the named parts are dead, and starts them
// again, in the order of their names. What was written is in the files: only a machine that fails
// loses it.
func still(ctx context.Context, dir string, names []string, change func(data string) error) (err error) {
	f, err := resolve(dir)
	if err != nil {
		return err
	}
	lock, err := f.lock()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if running, err := Running(dir); err != nil || !running {
		return cmp.Or(err, fmt.Errorf("%w in %s", ErrNotRunning, dir))
	}
	if err := f.kill(names); err != nil {
		return err
	}
	if err := change(f.path("data", "etcd")); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("cluster: not ready again after %s", startLimit))
	defer cancel()
	c := &Cluster{dir: f}
	if c.api, err = openClient(Kubeconfig(string(f))); err != nil {
		return err
	}
	for _, name := range names {
		if err := c.again(ctx, name); err != nil {
			return fmt.Errorf("start %s again: %w", name, err)
		}
	}
	return c.until(ctx, c.ready)
}

// again starts a part as it was started before, and waits for those that others need.
func (c *Cluster) again(ctx context.Context, name string) error {
	text, err := os.ReadFile(c.dir.path("config", name+".args"))
	if err != nil {
		return err
	}
	var args []string
	if err := json.Unmarshal(text, &args); err != nil || len(args) == 0 {
		return fmt.Errorf("cluster: %s: %w", c.dir.path("config", name+".args"), cmp.Or(err, errors.New("empty")))
	}
	p, err := c.dir.start(name, args[0], true, args[1:]...)
	if err != nil {
		return err
	}
	c.parts = append(c.parts, p)
	switch name {
	case build.Etcd:
		address, err := os.ReadFile(c.dir.path("config", "etcd"))
		if err != nil {
			return err
		}
		return c.until(ctx, func(ctx context.Context) (bool, error) {
			return answers(ctx, strings.TrimSpace(string(address))+"/health"), nil
		})
	case build.APIServer:
		return c.until(ctx, c.ready)
	}
	return nil
}
