package prober_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/deltaplane/deltaplane/core/probe"
	"github.com/deltaplane/deltaplane/services/nodeagent/prober"
)

// at is a target of which the container listens at an address of this machine, by the port's name.
func at(t *testing.T, addr string) prober.Target {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	c := &corev1.Container{Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(n)}}, Env: []corev1.EnvVar{{Name: "FILE", Value: "/ready"}}}
	return prober.Target{Pod: &corev1.Pod{}, Container: c, ID: "id", IP: host, Timeout: 5 * time.Second}
}

// asked probes, and compares what came of it: the result, a part of the message, and whether an
// Event is to warn.
func asked(t *testing.T, target prober.Target, h corev1.ProbeHandler, want probe.Result, message string, warning bool) {
	t.Helper()
	target.Handler = h
	got, err := prober.Over(nil)(t.Context(), target)
	if err != nil || got.Result != want || !strings.Contains(got.Message, message) || message == "" && got.Message != "" || got.Warning != warning {
		t.Errorf("%s: %+v, %v: want %v and %q", h.String(), got, err, want, message)
	}
}

// silent is a port of this machine at which nobody listens.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestProbesByHTTP(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("/ready", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("User-Agent") != "kube-probe/1.36" || r.Header.Get("Accept") != "*/*" || r.URL.RawQuery != "deep=1" {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	mux.HandleFunc("/own", func(w http.ResponseWriter, r *http.Request) {
		_, accept := r.Header["Accept"]
		if r.Host != "example.org" || r.Header.Get("User-Agent") != "mine" || accept || !slices.Equal(r.Header["X-A"], []string{"1", "2"}) {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	mux.HandleFunc("/ill", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the password is 1234", http.StatusInternalServerError)
	})
	mux.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ready?deep=1", http.StatusFound) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://example.org/", http.StatusFound)
	})
	mux.HandleFunc("/round", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/round", http.StatusFound) })
	srv := httptest.NewServer(mux)
	defer srv.Close()
	target := at(t, srv.Listener.Addr().String())
	get := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("web")}}
	}
	asked(t, target, get("/ready?deep=1"), probe.Success, "", false)
	asked(t, target, get("/ill"), probe.Failure, "HTTP probe failed with statuscode: 500", false)
	asked(t, target, get("/nowhere"), probe.Failure, "statuscode: 404", false)
	asked(t, target, get("/here"), probe.Success, "", false)
	asked(t, target, get("/away"), probe.Success, "Probe terminated redirects", true)
	asked(t, target, get("/round"), probe.Failure, "stopped after 10 redirects", false)
	own := get("/own")
	own.HTTPGet.HTTPHeaders = []corev1.HTTPHeader{{Name: "Host", Value: "example.org"}, {Name: "User-Agent", Value: "mine"}, {Name: "Accept"}, {Name: "x-a", Value: "1"}, {Name: "X-A", Value: "2"}}
	asked(t, target, own, probe.Success, "", false)
	asked(t, at(t, silent(t)), get("/"), probe.Failure, "refused", false)
}

func TestProbesByHTTPSMindNoCertificate(t *testing.T) {
	t.Parallel()
	srv := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	target := at(t, srv.Listener.Addr().String())
	h := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Scheme: corev1.URISchemeHTTPS, Port: intstr.FromString("web")}}
	asked(t, target, h, probe.Success, "", false)
	h.HTTPGet.Scheme = corev1.URISchemeHTTP
	asked(t, target, h, probe.Failure, "statuscode: 400", false)
}

func TestAnHTTPProbeThatIsNotAnsweredFailsAfterItsTimeout(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hold }))
	defer srv.Close()
	defer close(hold)
	target := at(t, srv.Listener.Addr().String())
	target.Timeout = 10 * time.Millisecond
	asked(t, target, corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("web")}}, probe.Failure, "Timeout exceeded", false)
}

func TestAnHTTPProbeOfAPageThatBreaksOffCountsForNothing(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("half"))
	}))
	defer srv.Close()
	target := at(t, srv.Listener.Addr().String())
	target.Handler.HTTPGet = &corev1.HTTPGetAction{Port: intstr.FromString("web")}
	got, err := prober.Over(nil)(t.Context(), target)
	if err == nil || !strings.Contains(err.Error(), "broke off") || got.Result != probe.Unknown {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestProbesByTCP(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("web")}}
	asked(t, at(t, l.Addr().String()), h, probe.Success, "", false)
	asked(t, at(t, silent(t)), h, probe.Failure, "refused", false)
	elsewhere := at(t, l.Addr().String())
	elsewhere.IP = "192.0.2.1"
	h.TCPSocket.Host = "127.0.0.1"
	asked(t, elsewhere, h, probe.Success, "", false)
}

func TestProbesByGRPC(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv, state := grpc.NewServer(), health.NewServer()
	grpc_health_v1.RegisterHealthServer(srv, state)
	state.SetServingStatus("ill", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	go func() { _ = srv.Serve(l) }()
	defer srv.Stop()
	target := at(t, l.Addr().String())
	of := func(service *string) corev1.ProbeHandler {
		return corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: target.Container.Ports[0].ContainerPort, Service: service}}
	}
	asked(t, target, of(nil), probe.Success, "", false)
	asked(t, target, of(new("ill")), probe.Failure, `service unhealthy (responded with "NOT_SERVING")`, false)
	asked(t, target, of(new("unknown")), probe.Failure, "health rpc probe failed", false)
	gone := at(t, silent(t))
	gone.Handler.GRPC = &corev1.GRPCAction{Port: gone.Container.Ports[0].ContainerPort}
	for gone.Timeout = 50 * time.Millisecond; ; gone.Timeout *= 2 { // a slow machine is refused later
		got, err := prober.Over(nil)(t.Context(), gone)
		if err != nil || got.Result != probe.Failure || !strings.HasPrefix(got.Message, "timeout: ") {
			t.Fatalf("%+v, %v: want a timeout", got, err)
		}
		if strings.Contains(got.Message, "connection refused") {
			break
		}
		if gone.Timeout > 5*time.Second {
			t.Fatalf("%q does not say that the connection was refused", got.Message)
		}
	}
}

func TestProbesByCommands(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		code int32
		err  error
		want probe.Result
		text string
	}{
		{0, nil, probe.Success, ""},
		{1, nil, probe.Failure, "cat: no such file"},
		{0, context.DeadlineExceeded, probe.Failure, "timed out after 5s"},
		{0, errors.New("no such container"), probe.Unknown, ""},
	} {
		target := at(t, "127.0.0.1:1")
		target.Handler = corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"cat", "$(FILE)", "$(OTHER)"}}}
		got, err := prober.Over(func(_ context.Context, id string, command []string, timeout time.Duration) (int32, []byte, error) {
			if id != "id" || !slices.Equal(command, []string{"cat", "/ready", "$(OTHER)"}) || timeout != 5*time.Second {
				t.Errorf("run in %q for %v: %q", id, timeout, command)
			}
			return row.code, []byte("cat: no such file"), row.err
		})(t.Context(), target)
		if got.Result != row.want || !strings.Contains(got.Message, row.text) || (err != nil) != (row.want == probe.Unknown) {
			t.Errorf("exit code %d, %v: %+v, %v", row.code, row.err, got, err)
		}
	}
}

func TestAProbeThatNamesNothingToAskSaysSo(t *testing.T) {
	t.Parallel()
	for want, mod := range map[string]func(*prober.Target){
		"port other is neither": func(t *prober.Target) {
			t.Handler.TCPSocket = &corev1.TCPSocketAction{Port: intstr.FromString("other")}
		},
		"port 0 is neither":          func(t *prober.Target) { t.Handler.HTTPGet = &corev1.HTTPGetAction{} },
		"the pod has no address yet": func(t *prober.Target) { t.IP, t.Handler.GRPC = "", &corev1.GRPCAction{Port: 1} },
		"no handler":                 func(*prober.Target) {},
	} {
		target := at(t, "127.0.0.1:1")
		mod(&target)
		if got, err := prober.Over(nil)(t.Context(), target); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v, %v: want an error with %q", got, err, want)
		}
	}
}
