package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
)

// ErrBadAnswer is wrapped by every error about an answer that is not what was asked for: no JSON, a
// Table where a list is due, a list without a version, more than can be taken in.
var ErrBadAnswer = errors.New("kube: the answer is not readable")

// IsCertificate reports that the two ends do not trust each other: the server's certificate is
// signed by somebody else, has expired or names another host, the server refuses this client's, or
// one of them does not speak TLS.
func IsCertificate(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return true
	}
	// What the other end says of our certificate arrives as an OpError of this name, around an
	// unexported type.
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return true
	}
	_, ok := errors.AsType[tls.RecordHeaderError](err)
	return ok || errors.Is(err, http.ErrSchemeMismatch)
}

// IsUnreachable reports that no answer came, or none to its end: nobody listens, the name is not
// known, the connection broke or time ran out.
func IsUnreachable(err error) bool {
	if _, ok := errors.AsType[*StatusError](err); ok || IsCertificate(err) {
		return false
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || IsConnectionRefused(err)
}
