package answer

import (
	"encoding/json"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Refuse answers, as API servers refuse, what the gateway itself cannot let through. What may
// succeed a moment later, of 429 and 503, says when.
func Refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, text string) {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Message: text, Reason: reason, Code: int32(code), //nolint:gosec // of HTTP
	}
	h := w.Header()
	if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
		status.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
		h.Set("Retry-After", "1")
	}
	body, _ := json.Marshal(status) //nolint:errchkjson // texts and numbers
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-cache, private")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // the client is gone otherwise
}
