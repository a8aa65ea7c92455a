package alerts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/teststorage"
)

var picked = regexp.MustCompile(`\$(\w+)`)

// plain is an expression with everything picked.
func plain(expr string) string {
	return picked.ReplaceAllString(strings.ReplaceAll(expr, "$__rate_interval", "1m"), ".*")
}

// up is a `deltaplane up`, and where its parts show their metrics.
type up struct {
	api, gateway string
	admin        map[string]string // by component
}

func startUp(t *testing.T) *up {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "deltaplane")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/deltaplane")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	u := &up{admin: map[string]string{}}
	args := []string{"up", "--data-dir", filepath.Join(dir, "data")}
	listen := func(flag string) string {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer lis.Close()
		args = append(args, "--"+flag, lis.Addr().String())
		return lis.Addr().String()
	}
	u.api, u.gateway = listen("api-listen"), listen("gateway-listen")
	for flag, component := range map[string]string{"index": "indexer", "queue": "queue", "reflector": "reflector", "controllers": "controllers", "gateway": "gateway"} {
		if flag != "controllers" && flag != "gateway" {
			listen(flag + "-listen")
		}
		u.admin[component] = listen(flag + "-admin-listen")
	}
	args = append(args, "--nodes-admin-listen", "off", "--console-listen", "127.0.0.1:0", "--console-admin-listen", "off", "--nats-listen", "off", "--index-memory-budget", "1Gi")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("deltaplane up: %v", err)
		}
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("deltaplane up said:\n%s", text)
		}
	})
	return u
}

const job = `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"job-%d","namespace":"default"},"spec":{"parallelism":2,"completions":2,"template":{
"metadata":{"annotations":{"deltaplane.io/run-seconds":"0"}},"spec":{"restartPolicy":"Never","containers":[{"name":"main","image":"busybox"}]}}}}`

// load makes a Job and reads through the gateway. What fails is made again with the next round.
func (u *up) load(ctx context.Context, round int) error {
	call := func(method, url, body string) error {
		r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, answer.Body)
		return errors.Join(err, answer.Body.Close())
	}
	return errors.Join(
		call(http.MethodPost, "http://"+u.api+"/apis/batch/v1/namespaces/default/jobs", fmt.Sprintf(job, round)),
		call(http.MethodGet, "http://"+u.gateway+"/api/v1/pods", ""),
		call(http.MethodGet, "http://"+u.gateway+"/api/v1/namespaces", ""),
	)
}

// scrape stores what all parts show, as Prometheus would.
func (u *up) scrape(t *testing.T, store *teststorage.TestStorage, at time.Time) {
	t.Helper()
	app := store.Appender(t.Context())
	add := func(component, address string, metric labels.Labels, value float64) {
		b := labels.NewBuilder(metric)
		b.Set("job", "deltaplane").Set("component", component).Set("instance", address)
		if _, err := app.Append(0, b.Labels(), at.UnixMilli(), value); err != nil {
			t.Fatal(err)
		}
	}
	for component, address := range u.admin {
		text, err := get(t.Context(), "http://"+address+"/metrics")
		is := 1.0
		if err != nil {
			is = 0
		}
		add(component, address, labels.FromStrings(model.MetricNameLabel, "up"), is)
		p, err := textparse.New(text, "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for {
			entry, err := p.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", component, err)
			}
			if entry != textparse.EntrySeries {
				continue
			}
			var metric labels.Labels
			p.Labels(&metric)
			_, _, value := p.Series()
			add(component, address, metric, value)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

func get(ctx context.Context, url string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(answer.Body)
	return text, errors.Join(err, answer.Body.Close())
}

// Every expression of every panel, but of those that say why they may be empty, is asked until it
// has data. The system is under a load meanwhile, and is given five minutes. Then no alert holds.
func TestEveryPanelHasDataAndNoAlertHoldsWhileTheSystemWorks(t *testing.T) {
	t.Parallel()
	u := startUp(t)
	store := teststorage.New(t)
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e7, Timeout: time.Minute, EnableDelayedNameRemoval: true, Parser: parser.NewParser(parser.Options{})})
	defer engine.Close()
	empty := map[string]string{}
	for _, d := range Dashboards() {
		for _, row := range d.Rows {
			for _, p := range row.Panels {
				for i, q := range p.Show {
					if p.Quiet == "" {
						empty[fmt.Sprintf("%s: %s, %d", d.Title, p.Title, i+1)] = plain(q.Expr)
					}
				}
			}
		}
	}
	if len(empty) < 80 {
		t.Fatalf("%d expressions: the dashboards are not looked at", len(empty))
	}
	alerts := map[string]string{}
	for _, r := range allRules(t) {
		// Objectives look at hours, of which the first seconds of a system are no sample.
		if r.Alert != "" && !strings.Contains(r.Expr, "deltaplane:") {
			alerts[r.String()] = r.Expr
		}
	}
	holding := alerts
	tick, over := time.NewTicker(time.Second), time.After(5*time.Minute)
	defer tick.Stop()
	var failed error
	for round := 0; len(empty) > 0 || len(holding) > 0; round++ {
		select {
		case <-tick.C:
		case <-over:
			for _, name := range slices.Sorted(maps.Keys(empty)) {
				t.Errorf("no data: %s: %s", name, empty[name])
			}
			t.Fatalf("alerts that hold: %v; the last load ended with %v", slices.Sorted(maps.Keys(holding)), failed)
		}
		failed = u.load(t.Context(), round)
		now := time.Now()
		u.scrape(t, store, now)
		if round < 2 {
			continue
		}
		for name, expr := range empty {
			if has(t, engine, store, expr, now) {
				delete(empty, name)
			}
		}
		holding = maps.Clone(alerts)
		for name, expr := range alerts {
			if !has(t, engine, store, expr, now) {
				delete(holding, name)
			}
		}
	}
}

// has reports whether an expression has a value that is a number.
func has(t *testing.T, engine *promql.Engine, store *teststorage.TestStorage, expr string, at time.Time) bool {
	t.Helper()
	q, err := engine.NewInstantQuery(t.Context(), store, nil, expr, at)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	defer q.Close()
	r := q.Exec(t.Context())
	if r.Err != nil {
		t.Fatalf("%s: %v", expr, r.Err)
	}
	v, err := r.Vector()
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	return slices.ContainsFunc(v, func(s promql.Sample) bool { return !math.IsNaN(s.F) })
}
