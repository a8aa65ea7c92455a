package prober

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/deltaplane/deltaplane/core/probe"
	"github.com/deltaplane/deltaplane/services/nodeagent/environ"
)

// Target is what one probe asks.
type Target struct {
	Pod       *corev1.Pod
	Container *corev1.Container
	// ID is the container's in the runtime, IP the pod's address.
	ID, IP  string
	Handler corev1.ProbeHandler
	Timeout time.Duration
}

// Answer is what a probe came to: a Success or a Failure. Message says why it failed, or what an
// Event is to warn of although it did not.
type Answer struct {
	Result  probe.Result
	Message string
	Warning bool
}

// Func makes one probe; an error says why it could not be made. It returns soon after ctx ends.
type Func func(ctx context.Context, t Target) (Answer, error)

// Passes answers every probe with a success: for containers that are simulated, and answer nobody.
func Passes(context.Context, Target) (Answer, error) { return success(), nil }

// Exec runs a command in a container and returns what it printed. An error says that it could not
// be run; one that took longer than its timeout is [context.DeadlineExceeded].
type Exec func(ctx context.Context, id string, command []string, timeout time.Duration) (code int32, output []byte, err error)

const (
	// userAgent is that of the kubelet whose behaviour is followed: servers know probes by it.
	userAgent = "kube-probe/1.36"
	// maxOutput is how much of an answer is read, in bytes.
	maxOutput = 10 << 10
)

func success() Answer { return Answer{Result: probe.Success} }

func failure(message string) Answer { return Answer{Result: probe.Failure, Message: message} }

// Over returns what probes over the network and, by exec, in containers.
func Over(exec Exec) Func {
	n := network{exec: exec, transport: &http.Transport{
		// Whose certificate a container has is not the matter of a probe, as with the kubelet.
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as above
		DisableKeepAlives: true, DisableCompression: true, ForceAttemptHTTP2: true, DialContext: dial,
	}}
	return n.probe
}

// dial opens a connection that holds its port for a second at most after it was closed: probes by
// the thousand must not use up the node's.
func dial(ctx context.Context, network, to string) (net.Conn, error) {
	conn, err := (&net.Dialer{KeepAlive: -1}).DialContext(ctx, network, to)
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(1)
	}
	return conn, err
}

type network struct {
	exec      Exec
	transport *http.Transport
}

func (n network) probe(ctx context.Context, t Target) (Answer, error) {
	h := t.Handler
	switch {
	case h.Exec != nil:
		return n.command(ctx, t)
	case h.HTTPGet != nil:
		return n.http(ctx, t)
	case h.TCPSocket != nil:
		to, err := t.address(h.TCPSocket.Host, h.TCPSocket.Port)
		if err != nil {
			return Answer{}, err
		}
		return tcp(ctx, to, t.Timeout), nil
	case h.GRPC != nil:
		to, err := t.address("", intstr.FromInt32(h.GRPC.Port))
		if err != nil {
			return Answer{}, err
		}
		service := ""
		if h.GRPC.Service != nil {
			service = *h.GRPC.Service
		}
		return health(ctx, to, service, t.Timeout), nil
	}
	return Answer{}, errors.New("the probe names no handler that is known")
}

// address is where to dial: host, or the pod when that is empty, and a port by its number or by its
// name in the container's spec.
func (t Target) address(host string, p intstr.IntOrString) (string, error) {
	port := p.IntValue()
	if p.Type == intstr.String {
		for i := range t.Container.Ports {
			if t.Container.Ports[i].Name == p.StrVal {
				port = int(t.Container.Ports[i].ContainerPort)
			}
		}
	}
	if port <= 0 || port > 65535 {
		return "", fmt.Errorf("port %s is neither a port's number nor the name of one of the container's ports", p.String())
	}
	if host = cmp.Or(host, t.IP); host == "" {
		return "", errors.New("the pod has no address yet") // without a host, this machine would answer
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

func (n network) command(ctx context.Context, t Target) (Answer, error) {
	known := map[string]string{}
	for _, v := range t.Container.Env {
		known[v.Name] = v.Value
	}
	command := make([]string, len(t.Handler.Exec.Command))
	for i, arg := range t.Handler.Exec.Command {
		command[i] = environ.Expand(arg, func(name string) (string, bool) { v, ok := known[name]; return v, ok })
	}
	code, out, err := n.exec(ctx, t.ID, command, t.Timeout)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return failure(fmt.Sprintf("command timed out after %v", t.Timeout)), nil
	case err != nil:
		return Answer{}, err
	case code != 0:
		return failure(string(out[:min(len(out), maxOutput)])), nil
	}
	return success(), nil
}

func tcp(ctx context.Context, to string, timeout time.Duration) Answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := dial(ctx, "tcp", to)
	if err != nil {
		return failure(err.Error())
	}
	_ = conn.Close()
	return success()
}

// http gets a page. A status below 400 is a success; a redirect to another host is not followed,
// and a warning. A page that breaks off says nothing.
func (n network) http(ctx context.Context, t Target) (Answer, error) {
	request, err := get(ctx, t)
	if err != nil {
		return Answer{}, err
	}
	client := &http.Client{Timeout: t.Timeout, Transport: n.transport, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		if next.URL.Hostname() != via[0].URL.Hostname() {
			return http.ErrUseLastResponse
		}
		if len(via) >= 10 {
			return errors.New("stopped after 10 redirects")
		}
		return nil
	}}
	response, err := client.Do(request)
	if err != nil {
		return failure(err.Error()), nil
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxOutput))
	switch code := response.StatusCode; {
	case err != nil:
		return Answer{}, fmt.Errorf("the answer broke off: %w", err)
	case code < http.StatusOK || code >= http.StatusBadRequest:
		return failure(fmt.Sprintf("HTTP probe failed with statuscode: %d", code)), nil // the body may hold secrets
	case code >= http.StatusMultipleChoices:
		return Answer{Result: probe.Success, Warning: true, Message: "Probe terminated redirects, Response body: " + string(body)}, nil
	}
	return success(), nil
}

// get is a probe's request.
func get(ctx context.Context, t Target) (*http.Request, error) {
	h := t.Handler.HTTPGet
	host, err := t.address(h.Host, h.Port)
	if err != nil {
		return nil, err
	}
	to, err := url.Parse(h.Path)
	if err != nil {
		to = &url.URL{Path: h.Path}
	}
	if to.Scheme = strings.ToLower(string(h.Scheme)); to.Scheme == "" {
		to.Scheme = "http"
	}
	to.Host = host
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, header := range h.HTTPHeaders {
		request.Header.Add(header.Name, header.Value)
	}
	if _, own := request.Header["User-Agent"]; !own {
		request.Header.Set("User-Agent", userAgent)
	}
	if values, own := request.Header["Accept"]; !own {
		request.Header.Set("Accept", "*/*")
	} else if values[0] == "" {
		request.Header.Del("Accept")
	}
	request.Host = request.Header.Get("Host") // empty is the URL's
	return request, nil
}
