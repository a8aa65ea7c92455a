package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	served "github.com/deltaplane/deltaplane/services/gateway/answer"
)

const (
	pods       = "/api/v1/pods"
	configMaps = "/api/v1/namespaces/default/configmaps"
	any0       = "?resourceVersion=0"

	oursName   = "gateway"
	besideName = "kube-apiserver"
)

// rig is a real API server with pods, and a gateway with all that stands behind it.
type rig struct {
	b        *harness.Bench
	cluster  *system.TestCluster
	pipeline *harness.Child
	gateway  *harness.Child
	ours     side
	beside   side
}

// side is one of the two servers.
type side struct {
	name   string
	base   string
	config *rest.Config
	usage  func() (time.Duration, error)
}

func newRig(ctx context.Context, b *harness.Bench, n int) (_ *rig, err error) {
	r := &rig{b: b}
	if r.cluster, err = system.BareCluster(ctx, b, filepath.Join(b.Dir, "kube")); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if err := r.seed(ctx, n); err != nil {
		return nil, err
	}
	if err := harness.WriteCertificate(b.Dir); err != nil {
		return nil, err
	}
	cfg := config{Part: "pipeline", Dir: b.Dir, Kubeconfig: r.cluster.Kubeconfig()}
	if r.pipeline, err = b.Spawn(ctx, "gateway", harness.Place{}, cfg, &cfg.Index); err != nil {
		return nil, err
	}
	cfg.Part = "gateway"
	r.ours.name, r.beside.name = oursName, besideName
	if r.gateway, err = b.Spawn(ctx, "gateway", harness.Place{}, cfg, &r.ours.base); err != nil {
		return nil, err
	}
	if r.beside.config, err = clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig); err != nil {
		return nil, err
	}
	r.beside.base = r.beside.config.Host
	r.ours.config = &rest.Config{Host: r.ours.base, BearerToken: r.beside.config.BearerToken, TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(b.Dir, "cert.pem")}}
	r.ours.usage = func() (time.Duration, error) { u, err := r.gateway.Usage(); return u.CPU, err }
	r.beside.usage = func() (time.Duration, error) { return harness.ProcessCPU(r.pid()) }
	hc := r.ours.client()
	return r, harness.Await(ctx, 2*time.Minute, "the index does not answer for the gateway", func() (bool, error) {
		for _, path := range []string{pods, configMaps} {
			resp, err := get(ctx, hc, r.ours.base+path+any0+"&fieldSelector=metadata.name=x", false)
			if err != nil || resp.by != "index" {
				return false, err
			}
		}
		return true, nil
	})
}

func (r *rig) seed(ctx context.Context, n int) (err error) {
	file, err := os.Create(filepath.Join(r.b.Dir, "seed"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	size, err := population.WriteManaged(file, r.b.Seed, n)
	if err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	r.b.Note("%d pods with managed fields, seed %d, %d bytes each in JSON; HTTP over TLS 1.3 to both; the gateway's CPU is its own process, the pipeline behind it is shown beside", n, r.b.Seed, size/n)
	return r.cluster.Feed(ctx, file, "seed")
}

func (r *rig) close() error {
	var errs []error
	for _, c := range []*harness.Child{r.gateway, r.pipeline} {
		if c != nil {
			errs = append(errs, c.Stop())
		}
	}
	return errors.Join(append(errs, r.cluster.Down())...)
}

// pid is that of the API server.
func (r *rig) pid() string {
	return r.cluster.PID(besideName)
}

// client is one with connections of its own.
func (s *side) client() *http.Client {
	hc, err := rest.HTTPClientFor(&rest.Config{
		Host: s.config.Host, BearerToken: s.config.BearerToken, DisableCompression: true,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.config.CAFile, CAData: s.config.CAData, NextProtos: []string{"h2"}},
	})
	if err != nil {
		panic(err) // the configuration was used before
	}
	return hc
}

type answer struct {
	by    string
	bytes int64
}

// get reads an answer to its end, and fails where it is none.
func get(ctx context.Context, hc *http.Client, url string, gzip bool) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Accept", "application/json")
	if gzip {
		req.Header.Set("Accept-Encoding", "gzip")
	}
	resp, err := hc.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return answer{resp.Header.Get(served.ServedBy), n}, err
}

// peakRSS is the most memory that a process has had since resetPeak, in MB.
func peakRSS(pid string) (float64, error) {
	text, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb / 1024, err
		}
	}
	return 0, errors.New("no VmHWM")
}

func resetPeak(pid string) error { return os.WriteFile("/proc/"+pid+"/clear_refs", []byte("5"), 0) }
