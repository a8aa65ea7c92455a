package console

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// policy is what the pages may do: scripts, styles and calls of this server alone.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; " +
	"manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// headers are those of every answer.
var headers = map[string]string{
	"Content-Security-Policy":      policy,
	"X-Content-Type-Options":       "nosniff",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"X-Frame-Options":              "DENY",
}

// guard refuses requests that a page of somebody else could have a browser send.
type guard struct {
	hosts []string
	next  http.Handler
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range headers {
		w.Header().Set(name, value)
	}
	switch {
	case !g.knows(r.Host):
		// A page whose name is pointed at this machine is of the same origin as what it asks here.
		http.Error(w, "this console is not called by that name", http.StatusMisdirectedRequest)
	case !sameOrigin(r):
		http.Error(w, "the request comes from a page of another origin", http.StatusForbidden)
	case r.Method == http.MethodPost && !media(r):
		http.Error(w, "the content must be that of a call by Connect", http.StatusUnsupportedMediaType)
	case r.Method != http.MethodPost && r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD, POST")
		http.Error(w, "the method is not allowed", http.StatusMethodNotAllowed)
	default:
		g.next.ServeHTTP(w, r)
	}
}

// knows reports whether the server is called by a host: an IP address, which no name can be pointed
// at, localhost, or a name that it was given.
func (g *guard) knows(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return strings.EqualFold(host, "localhost") || slices.ContainsFunc(g.hosts, func(known string) bool { return strings.EqualFold(known, host) })
}

// sameOrigin reports whether a request comes from a page of this server, or from no page.
func sameOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		// To follow a link or a bookmark is all that another page may have a browser do.
		return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	}
	all := r.Header.Values("Origin")
	if len(all) == 0 {
		return true
	}
	origin, err := url.Parse(all[0])
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return err == nil && len(all) == 1 && origin.Scheme == scheme && strings.EqualFold(origin.Host, r.Host)
}

// medias are the contents of calls. A page of another origin cannot have a browser send them
// without asking first, which is answered no.
var medias = []string{"application/proto", "application/json", "application/connect+proto", "application/connect+json"}

func media(r *http.Request) bool {
	all := r.Header.Values("Content-Type")
	if len(all) != 1 {
		return false
	}
	kind, _, _ := strings.Cut(all[0], ";")
	return slices.Contains(medias, strings.ToLower(strings.TrimSpace(kind)))
}
