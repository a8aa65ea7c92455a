package authority

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestARefusedRequestOfAnAdminPortIsALineOfTheAuditLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := &Authority{audit: newAudit(&out)}
	r := httptest.NewRequest(http.MethodGet, "/debug/pprof/heap?token=hush", http.NoBody)
	r.RemoteAddr = "192.0.2.7:4711"
	for code, decision := range map[int]string{http.StatusUnauthorized: "unauthenticated", http.StatusForbidden: "denied"} {
		out.Reset()
		a.RefusedPage(r, code, "no token")
		var line map[string]string
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatalf("%v: %s", err, out.Bytes())
		}
		if line["decision"] != decision || line["method"] != "GET /debug/pprof/heap" || line["addr"] != "192.0.2.7" || line["reason"] != "no token" {
			t.Errorf("status %d is %v", code, line)
		}
	}
	var none *Authority
	none.RefusedPage(r, http.StatusForbidden, "no token") // a server that limits nobody audits nothing
}
