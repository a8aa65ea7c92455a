package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// object is a Kubernetes object as JSON.
type object = map[string]any

// statusError is an answer of the API server other than 2xx.
type statusError struct {
	code         int
	method, path string
	message      string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s %s: %d: %s", e.method, e.path, e.code, e.message)
}

// missing tells whether the API server answered that there is no such object.
func missing(err error) bool {
	status, ok := errors.AsType[*statusError](err)
	return ok && status.code == http.StatusNotFound
}

// client makes the few calls needed here. A Kubernetes client library would cost every start of the
// command a link of its own.
type client struct {
	server, token string
	http          *http.Client
}

func newClient(server string, s secrets) (*client, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.ca) {
		return nil, errors.New("cluster: no certificate authority")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true}
	return &client{server: server, token: s.token, http: &http.Client{Transport: transport, Timeout: 10 * time.Second}}, nil
}

// openClient reads the kubeconfig that Up wrote.
func openClient(file string) (*client, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: there is no %s", ErrNotRunning, file)
	}
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
				CA     string `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Token string `json:"token"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := json.Unmarshal(text, &config); err != nil || len(config.Clusters) != 1 || len(config.Users) != 1 {
		return nil, fmt.Errorf("cluster: %s was not written by this command (%v)", file, err)
	}
	ca, err := base64.StdEncoding.DecodeString(config.Clusters[0].Cluster.CA)
	if err != nil {
		return nil, fmt.Errorf("cluster: %s: %w", file, err)
	}
	return newClient(config.Clusters[0].Cluster.Server, secrets{ca: ca, token: config.Users[0].User.Token})
}

// do sends in, if there is one, and decodes the answer to out, if there is one.
func (c *client) do(ctx context.Context, method, path string, in object, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.server+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode >= 300 {
		var status struct{ Message string }
		if json.Unmarshal(text, &status) != nil || status.Message == "" {
			status.Message = string(text)
		}
		return &statusError{code: resp.StatusCode, method: method, path: path, message: status.Message}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// poll calls done until it reports true, returns an error, or ctx ends.
func poll(ctx context.Context, every time.Duration, done func(context.Context) (bool, error)) error {
	for {
		ok, err := done(ctx)
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(every):
		}
	}
}
