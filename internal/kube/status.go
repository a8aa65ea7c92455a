package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// StatusError is an error the API server answered with, from an HTTP status or an ERROR event of a
// watch.
type StatusError struct {
	// Verb and Path of the request.
	Verb, Path string
	// Code is the HTTP status, Reason the machine-readable reason such as "AlreadyExists", empty when
	// the answer was no Status.
	Code    int
	Reason  string
	Message string
	// Causes are details.causes.
	Causes []Cause
	// RetryAfter is how long the server asks to wait; 0 when it does not say.
	RetryAfter time.Duration
}

// Cause is one entry of a Status' details.
type Cause struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Field   string `json:"field"`
}

// Error implements error.
func (e *StatusError) Error() string {
	reason := e.Reason
	if reason == "" {
		reason = http.StatusText(e.Code)
	}
	return fmt.Sprintf("kube: %s %s: %d %s: %s", e.Verb, e.Path, e.Code, reason, e.Message)
}

// Explain is what the server said, without the request it was said to: a text for the user of an
// Event.
func (e *StatusError) Explain() string {
	if e.Message == "" {
		return e.Error()
	}
	return e.Message
}

type wireStatus struct {
	Kind    string `json:"kind"`
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Details struct {
		Causes            []Cause `json:"causes"`
		RetryAfterSeconds int     `json:"retryAfterSeconds"`
	} `json:"details"`
}

func newStatusError(r request, resp *http.Response, body []byte) *StatusError {
	e := parseStatus(body)
	e.Verb, e.Path = r.method, r.path
	if e.Code == 0 {
		e.Code = resp.StatusCode
	}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 && e.RetryAfter == 0 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	return e
}

func parseStatus(body []byte) *StatusError {
	var w wireStatus
	if err := json.Unmarshal(body, &w); err != nil || w.Kind != "Status" {
		const most = 300
		text := strings.TrimSpace(string(body[:min(len(body), most)]))
		return &StatusError{Message: text}
	}
	return &StatusError{
		Code: w.Code, Reason: w.Reason, Message: w.Message, Causes: w.Details.Causes,
		RetryAfter: time.Duration(w.Details.RetryAfterSeconds) * time.Second,
	}
}

func status(err error, code int, reasons ...string) bool {
	e, ok := errors.AsType[*StatusError](err)
	return ok && e.says(code, reasons...)
}

// says reports whether the answer has one of the reasons, or none and the code.
func (e *StatusError) says(code int, reasons ...string) bool {
	return slices.Contains(reasons, e.Reason) || e.Code == code && e.Reason == ""
}

// IsExpired reports that a resource version or a continue token is too old (410).
func IsExpired(err error) bool { return status(err, http.StatusGone, "Expired", "Gone") }

// IsTooLargeRV reports that the server has not reached the resource version yet, in any of the
// three forms it says so: a typed cause, a Timeout whose cause carries the text, a Timeout whose
// message carries it.
func IsTooLargeRV(err error) bool {
	e, ok := errors.AsType[*StatusError](err)
	if !ok {
		return false
	}
	const text = "Too large resource version"
	for _, c := range e.Causes {
		if c.Reason == "ResourceVersionTooLarge" {
			return true
		}
	}
	if e.Reason != "Timeout" && e.Code != http.StatusGatewayTimeout {
		return false
	}
	for _, c := range e.Causes {
		if c.Message == text {
			return true
		}
	}
	return strings.Contains(e.Message, text)
}

// IsTooManyRequests reports 429.
func IsTooManyRequests(err error) bool {
	return status(err, http.StatusTooManyRequests, "TooManyRequests")
}

// IsInternal reports 500.
func IsInternal(err error) bool { return status(err, http.StatusInternalServerError, "InternalError") }

// IsForbidden reports 403.
func IsForbidden(err error) bool { return status(err, http.StatusForbidden, "Forbidden") }

// IsUnauthorized reports 401, and a credential plugin that gave nothing to show.
func IsUnauthorized(err error) bool {
	return errors.Is(err, errNoCredentials) || status(err, http.StatusUnauthorized, "Unauthorized")
}

// errNoCredentials marks a call that was not sent, because the kubeconfig's credential plugin
// failed.
var errNoCredentials = errors.New("no credentials")

// IsBadRequest reports a request the server does not understand (400).
func IsBadRequest(err error) bool { return status(err, http.StatusBadRequest, "BadRequest") }

// IsTimeout reports that the server gave up waiting (504), the object may or may not have been
// written.
func IsTimeout(err error) bool {
	return status(err, http.StatusGatewayTimeout, "Timeout", "ServerTimeout")
}

// IsConnectionRefused reports that nobody listens at the address.
func IsConnectionRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// RetryAfter is how long the server asks to wait; 0 when it does not say or err is not its.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*StatusError](err); ok {
		return e.RetryAfter
	}
	return 0
}
