package cluster

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/deltaplane/deltaplane/test/kube/build"
)

// startOrder lists the parts so that each comes after those it needs.
var startOrder = []string{build.Etcd, build.APIServer, build.ControllerManager, build.Scheduler, build.Kwok}

//go:embed stages.yaml
var stages []byte

// startLimit bounds each step of Up; a loaded machine takes a small part of it.
const startLimit = 3 * time.Minute

// Cluster is a running cluster that this process started. Its methods are not safe for concurrent
// use.
type Cluster struct {
	cfg   Config
	dir   folder
	lock  *os.File
	parts []*process
	api   *client
}

// Up starts a cluster in cfg.Dir and returns when it can be used: the API server is ready, default
// service accounts exist, every simulated node is Ready and has a lease. It returns ErrRunning if
// one runs there already. When it fails, or ctx ends, nothing keeps running.
func Up(ctx context.Context, cfg Config) (*Cluster, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	dir, err := resolve(cfg.Dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, dir: dir}
	if c.lock, err = dir.lock(); err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		if !errors.Is(err, ErrRunning) {
			err = errors.Join(err, dir.stopAll(), dir.removeKubeconfig())
		}
		return nil, errors.Join(err, c.lock.Close())
	}
	return c, nil
}

// resolve makes dir and returns it without symbolic links: parts are recognised by their folder's
// name.
func resolve(dir string) (folder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("cluster: %w", err)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fmt.Errorf("cluster: %w", err)
	}
	return folder(real), nil
}

func (c *Cluster) start(ctx context.Context) error {
	old, err := Status(string(c.dir))
	if err != nil {
		return err
	}
	for _, p := range old {
		if p.PID != 0 {
			return fmt.Errorf("%w: %s is process %d; kube down stops it", ErrRunning, p.Name, p.PID)
		}
	}
	began := time.Now()
	if err := c.clean(); err != nil {
		return err
	}
	ports, err := c.ports()
	if err != nil {
		return err
	}
	secret, err := c.dir.makeSecrets()
	if err != nil {
		return fmt.Errorf("cluster: make certificates: %w", err)
	}
	server := "https://" + ports[0]
	if c.api, err = newClient(server, secret); err != nil {
		return err
	}
	if err := c.dir.writeKubeconfig(server, secret); err != nil {
		return err
	}
	if err := c.writeConfig(ports[1]); err != nil {
		return err
	}
	for _, step := range []struct {
		name, detail string
		run          func(context.Context) error
	}{
		{"etcd", ports[1], func(ctx context.Context) error { return c.etcd(ctx, ports[1], ports[2]) }},
		{"kube-apiserver", server, func(ctx context.Context) error { return c.apiServer(ctx, ports[0], ports[1]) }},
		{"controllers", c.cfg.Controllers, c.controllers},
		{"simulated nodes", fmt.Sprintf("%d Ready with leases", max(c.cfg.Nodes, 0)), c.nodes},
	} {
		at := time.Now()
		limited, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not ready after %s", startLimit))
		err := step.run(limited)
		cancel()
		if err != nil {
			return fmt.Errorf("start %s: %w", step.name, err)
		}
		fmt.Fprintf(c.cfg.Out, "  %-16s ready in %4.1fs  %s\n", step.name, time.Since(at).Seconds(), step.detail)
	}
	fmt.Fprintf(c.cfg.Out, "  %-16s ready in %4.1fs  logs in %s\n", "cluster", time.Since(began).Seconds(), c.dir.path("logs"))
	return nil
}

// clean removes what an earlier cluster left and makes the folders.
func (c *Cluster) clean() error {
	for _, sub := range []string{"kubeconfig", "data", "pki", "config", "logs", "pids"} {
		if err := os.RemoveAll(c.dir.path(sub)); err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		if sub == "kubeconfig" {
			continue
		}
		if err := os.Mkdir(c.dir.path(sub), 0o700); err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
	}
	pid := strconv.Itoa(os.Getpid()) + "\n"
	if err := os.WriteFile(c.dir.path("pids", supervisor), []byte(pid), 0o600); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}

// ports returns the addresses of the API server, of etcd, and of etcd for peers. All are held until
// all are known, so that they differ.
func (c *Cluster) ports() ([3]string, error) {
	var found [3]string
	for i, port := range []int{c.cfg.Port, c.cfg.EtcdPort, c.cfg.EtcdPeerPort} {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return found, fmt.Errorf("cluster: %w", err)
		}
		defer l.Close()
		found[i] = l.Addr().String()
	}
	return found, nil
}

// writeConfig writes what the parts read, and where etcd listens, for Seed.
func (c *Cluster) writeConfig(etcd string) error {
	scheduler := `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: ` + strconv.Quote(c.dir.path("kubeconfig")) + `, qps: 1000, burst: 2000}
`
	for name, text := range map[string][]byte{
		"stages.yaml": stages, "scheduler.yaml": []byte(scheduler), "etcd": []byte("http://" + etcd + "\n"),
	} {
		if err := os.WriteFile(c.dir.path("config", name), text, 0o600); err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
	}
	return nil
}

// part starts one of the programs.
func (c *Cluster) part(name string, args ...string) error {
	p, err := c.dir.start(name, filepath.Join(c.cfg.Bin, name), c.cfg.Detach, args...)
	if err != nil {
		return err
	}
	c.parts = append(c.parts, p)
	return nil
}

// until polls like poll and gives up when a part has ended.
func (c *Cluster) until(ctx context.Context, done func(context.Context) (bool, error)) error {
	return poll(ctx, 50*time.Millisecond, func(ctx context.Context) (bool, error) {
		for _, p := range c.parts {
			select {
			case <-p.exited:
				return false, c.dir.failure(p)
			default:
			}
		}
		return done(ctx)
	})
}

func (c *Cluster) etcd(ctx context.Context, address, peer string) error {
	err := c.part(build.Etcd, "-data-dir", c.dir.path("data", "etcd"), "-listen-client-urls", "http://"+address, "-listen-peer-urls", "http://"+peer)
	if err != nil {
		return err
	}
	return c.until(ctx, func(ctx context.Context) (bool, error) { return answers(ctx, "http://"+address+"/health"), nil })
}

// answers tells whether a GET of url gives 200.
func answers(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

func (c *Cluster) apiServer(ctx context.Context, address, etcd string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	err = c.part(build.APIServer, append([]string{
		"--bind-address=" + host, "--secure-port=" + port, "--advertise-address=" + host,
		// A loopback address may not be published as an endpoint, and nobody looks for one.
		"--endpoint-reconciler-type=none",
		"--etcd-servers=http://" + etcd,
		"--tls-cert-file=" + c.dir.path("pki", "server.crt"), "--tls-private-key-file=" + c.dir.path("pki", "server.key"),
		"--cert-dir=" + c.dir.path("pki"),
		"--token-auth-file=" + c.dir.path("pki", "tokens.csv"),
		"--client-ca-file=" + c.dir.path("pki", "ca.crt"),
		"--requestheader-client-ca-file=" + c.dir.path("pki", "ca.crt"), "--requestheader-allowed-names=" + FrontProxy,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--authorization-mode=RBAC", "--anonymous-auth=false",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.dir.path("pki", "service-account.key"),
		"--service-account-signing-key-file=" + c.dir.path("pki", "service-account.key"),
		"--service-cluster-ip-range=10.0.0.0/24",
		"--allow-privileged=true",
		// It taints new nodes not-ready, and the node lifecycle controller, which takes that away, is not
		// here.
		"--disable-admission-plugins=TaintNodesByCondition",
	}, c.cfg.APIServerArgs...)...)
	if err != nil {
		return err
	}
	return c.until(ctx, c.ready)
}

// ready tells whether the API server says that it is.
func (c *Cluster) ready(ctx context.Context) (bool, error) {
	return c.api.do(ctx, http.MethodGet, "/readyz", nil, nil) == nil, nil
}

func (c *Cluster) controllers(ctx context.Context) error {
	kubeconfig := c.dir.path("kubeconfig")
	err := errors.Join(
		c.part(build.ControllerManager, append([]string{
			"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0", "--controllers=" + c.cfg.Controllers,
			"--service-account-private-key-file=" + c.dir.path("pki", "service-account.key"),
			"--root-ca-file=" + c.dir.path("pki", "ca.crt"),
			"--kube-api-qps=1000", "--kube-api-burst=2000",
		}, c.cfg.ManagerArgs...)...),
		c.part(build.Scheduler, "--config="+c.dir.path("config", "scheduler.yaml"), "--secure-port=0"),
		c.part(build.Kwok,
			"--kubeconfig="+kubeconfig, "--config="+c.dir.path("config", "stages.yaml"),
			"--manage-nodes-with-label-selector="+KubeletLabel+"="+KubeletKwok, "--node-lease-duration-seconds="+strconv.Itoa(c.cfg.LeaseSeconds), "--cidr=10.64.0.0/14", "--node-ip=10.0.0.2",
		))
	if err != nil {
		return err
	}
	return c.until(ctx, func(ctx context.Context) (bool, error) {
		err := c.api.do(ctx, http.MethodGet, "/api/v1/namespaces/default/serviceaccounts/default", nil, nil)
		if missing(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// nodes creates the simulated nodes and waits until KWOK has made them Ready and renews their
// leases.
func (c *Cluster) nodes(ctx context.Context) error {
	for i := range c.cfg.Nodes {
		name := "node-" + strconv.Itoa(i+1)
		labels := object{
			"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", KubeletLabel: KubeletKwok,
		}
		if c.cfg.Zones > 0 {
			labels["topology.kubernetes.io/zone"] = "z" + strconv.Itoa(i*c.cfg.Zones/c.cfg.Nodes+1)
		}
		capacity := object{"cpu": "8", "memory": "32Gi", "pods": "110"}
		node := object{
			"apiVersion": "v1",
			"kind":       "Node",
			"metadata":   object{"name": name, "labels": labels},
			"status": object{
				"capacity":    capacity,
				"allocatable": capacity,
				"addresses": []object{
					{"type": "Hostname", "address": name},
					{"type": "InternalIP", "address": fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)},
				},
			},
		}
		if err := c.api.do(ctx, http.MethodPost, "/api/v1/nodes", node, nil); err != nil {
			return fmt.Errorf("create node: %w", err)
		}
	}
	return c.until(ctx, func(ctx context.Context) (bool, error) {
		var nodes struct {
			Items []struct {
				Status struct {
					Conditions []struct{ Type, Status string }
				}
			}
		}
		if err := c.api.do(ctx, http.MethodGet, "/api/v1/nodes", nil, &nodes); err != nil {
			return false, err
		}
		ready := 0
		for _, n := range nodes.Items {
			for _, condition := range n.Status.Conditions {
				if condition.Type == "Ready" && condition.Status == "True" {
					ready++
				}
			}
		}
		var leases struct{ Items []object }
		err := c.api.do(ctx, http.MethodGet, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", nil, &leases)
		return ready >= c.cfg.Nodes && len(leases.Items) >= c.cfg.Nodes, err
	})
}
