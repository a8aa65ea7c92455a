package console_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	"github.com/deltaplane/deltaplane/services/console"
)

// What a page of somebody else can have a browser send, and names that are pointed at this machine.
func TestRequestsThatOtherPagesCanSendAreRefused(t *testing.T) {
	t.Parallel()
	r := bare(t, func(c *console.Config, _ *console.Deps) { c.Hosts = []string{"console.example.com"} })
	at := strings.TrimPrefix(r.url, "http://")
	_, port, _ := strings.Cut(at, ":")
	pause := consolev1.ConsoleService_ActOnQueue_FullMethodName
	const json = "application/json"
	for name, c := range map[string]struct {
		method, path, host string
		headers            map[string]string
		want               int
	}{
		// An answer of 503 is the queue's, which is away: the call was carried out.
		"a call of the page itself":           {"POST", pause, at, map[string]string{"Origin": r.url, "Content-Type": json}, 503},
		"a call of no page":                   {"POST", pause, at, map[string]string{"Content-Type": json}, 503},
		"by localhost":                        {"POST", pause, "localhost:" + port, map[string]string{"Origin": "http://localhost:" + port, "Content-Type": json}, 503},
		"by localhost through another port":   {"POST", pause, "localhost:9000", map[string]string{"Origin": "http://localhost:9000", "Content-Type": json}, 503},
		"by an address of IPv6":               {"POST", pause, "[::1]:" + port, map[string]string{"Origin": "http://[::1]:" + port, "Content-Type": json}, 503},
		"by a name that was given":            {"POST", pause, "console.example.com", map[string]string{"Origin": "http://console.example.com", "Content-Type": json}, 503},
		"a name pointed at this machine":      {"POST", pause, "evil.example:" + port, map[string]string{"Origin": "http://evil.example:" + port, "Content-Type": json}, 421},
		"such a name without an origin":       {"POST", pause, "evil.example", map[string]string{"Content-Type": json}, 421},
		"such a name for a page":              {"GET", "/", "evil.example", nil, 421},
		"a name that begins like localhost":   {"POST", pause, "localhost.evil.example", map[string]string{"Content-Type": json}, 421},
		"a name that ends like localhost":     {"POST", pause, "evil.localhost", map[string]string{"Content-Type": json}, 421},
		"a page of another host":              {"POST", pause, at, map[string]string{"Origin": "http://evil.example", "Content-Type": json}, 403},
		"a page of another port":              {"POST", pause, at, map[string]string{"Origin": "http://127.0.0.1:1", "Content-Type": json}, 403},
		"a page of another scheme":            {"POST", pause, at, map[string]string{"Origin": "https://" + at, "Content-Type": json}, 403},
		"a page without an origin of its own": {"POST", pause, at, map[string]string{"Origin": "null", "Content-Type": json}, 403},
		"what a browser calls cross-site":     {"POST", pause, at, map[string]string{"Sec-Fetch-Site": "cross-site", "Content-Type": json}, 403},
		"what a browser calls same-site":      {"POST", pause, at, map[string]string{"Sec-Fetch-Site": "same-site", "Content-Type": json}, 403},
		"a picture of another page":           {"GET", "/", at, map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403},
		"a link of another page":              {"GET", "/", at, map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200},
		"a form as text":                      {"POST", pause, at, map[string]string{"Content-Type": "text/plain"}, 415},
		"a form":                              {"POST", pause, at, map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 415},
		"a form with files":                   {"POST", pause, at, map[string]string{"Content-Type": "multipart/form-data; boundary=x"}, 415},
		"a call without a content type":       {"POST", pause, at, nil, 415},
		"a call by gRPC-Web":                  {"POST", pause, at, map[string]string{"Content-Type": "application/grpc-web+proto"}, 415},
		"a call by GET":                       {"GET", pause + "?connect=v1&encoding=json&message={}", at, nil, 405},
		"a question before such a call":       {"OPTIONS", pause, at, map[string]string{"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}, 403},
		"another method":                      {"DELETE", pause, at, nil, 405},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := io.Reader(http.NoBody)
			if c.method == http.MethodPost {
				body = strings.NewReader(`{"queue":"q","action":"QUEUE_ACTION_PAUSE"}`)
			}
			req, err := http.NewRequestWithContext(t.Context(), c.method, r.url+c.path, body)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = c.host
			req.Header.Set("Connect-Protocol-Version", "1")
			for name, value := range c.headers {
				req.Header.Set(name, value)
			}
			resp, err := r.http.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != c.want {
				t.Errorf("answered %s %s, want %d", resp.Status, text, c.want)
			}
			if got := resp.Header.Get("Content-Security-Policy"); !strings.Contains(got, "default-src 'none'") || strings.Contains(got, "unsafe") {
				t.Errorf("the policy is %q", got)
			}
			if got := resp.Header.Get("Access-Control-Allow-Origin"); got != "" {
				t.Errorf("other origins may read: %q", got)
			}
		})
	}
}

func TestACallWithoutConnectsHeaderIsRefused(t *testing.T) {
	t.Parallel()
	r := bare(t, nil)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+consolev1.ConsoleService_ActOnQueue_FullMethodName, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("answered %s", resp.Status)
	}
}
