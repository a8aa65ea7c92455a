package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// kubelet answers for the pods of a node as far as the API server asks: it follows a log until it
// is let go, and echoes what is sent to a process.
func kubelet(t *testing.T, release <-chan struct{}) *url.URL {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/containerLogs/"):
			fmt.Fprintln(w, "first line")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-release:
				fmt.Fprintln(w, "last line")
			case <-r.Context().Done():
			}
		case strings.HasPrefix(r.URL.Path, "/exec/"), strings.HasPrefix(r.URL.Path, "/attach/"), strings.HasPrefix(r.URL.Path, "/portForward/"):
			conn, both, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
			_, _ = io.Copy(conn, both)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// Logs that are followed and connections that leave HTTP pass through the gateway and the API
// server, to the kubelet and back, as they come.
func TestRealLogsAndUpgradesPassThroughTheGateway(t *testing.T) {
	t.Parallel()
	r := onRealServer(t, nil)
	n := r.tenant()
	release := make(chan struct{})
	at := kubelet(t, release)
	node := "kubelet-" + n.ns
	n.made("/api/v1/nodes", `{"metadata":{"name":"`+node+`"}}`,
		`{"addresses":[{"type":"InternalIP","address":"127.0.0.1"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":`+at.Port()+`}}}`)
	t.Cleanup(func() {
		req, err := http.NewRequest(http.MethodDelete, n.direct+"/api/v1/nodes/"+node, nil) //nolint:noctx // the test's is over
		if err == nil {
			if resp, err := n.api.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}
	})
	pods := "/api/v1/namespaces/" + n.ns + "/pods"
	n.made(pods, `{"metadata":{"name":"p"},"spec":{"nodeName":"`+node+`","terminationGracePeriodSeconds":0,"containers":[{"name":"c","image":"i"}]}}`, `{"phase":"Running"}`)

	resp := n.ask(n.url, http.MethodGet, pods+"/p/log?follow=true&container=c", "")
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "first line\n" || resp.StatusCode != http.StatusOK {
		t.Fatalf("the log begins with %q: %s %v", line, resp.Status, err)
	}
	close(release) // the first line came before the last was written
	if rest, err := io.ReadAll(lines); err != nil || string(rest) != "last line\n" {
		t.Errorf("the log ends with %q, %v", rest, err)
	}

	host := strings.TrimPrefix(n.url, "http://")
	admin := n.client.Transport.(bearer).token //nolint:forcetypeassert // it is the rig's
	for _, subresource := range []string{"exec?command=cat&container=c&stdin=true&stdout=true", "attach?container=c&stdin=true", "portforward"} {
		conn, err := net.Dial("tcp", host) //nolint:noctx // it has a deadline
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		fmt.Fprintf(conn, "POST %s/p/%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n",
			pods, subresource, host, admin)
		in := bufio.NewReader(conn)
		answer, err := http.ReadResponse(in, nil)
		if err != nil || answer.StatusCode != http.StatusSwitchingProtocols || answer.Header.Get("Upgrade") != "SPDY/3.1" {
			t.Errorf("%s: %+v %v", subresource, answer, err)
			continue
		}
		for i := range 3 {
			said := fmt.Sprintf("line %d\n", i)
			fmt.Fprint(conn, said)
			if back, err := in.ReadString('\n'); err != nil || back != said {
				t.Errorf("%s: %q comes back as %q, %v", subresource, said, back, err)
			}
		}
	}
}
