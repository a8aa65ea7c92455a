package admin

import (
	"encoding/base64"
	"testing"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

func FuzzPageTokensAreReadOrRefused(f *testing.F) {
	f.Add("", int32(0))
	f.Add(page{queuev1.State_STATE_READY, 7, "1:s12", "k"}.String(), int32(2))
	f.Add(base64.RawURLEncoding.EncodeToString([]byte("2 0 1 x")), int32(2))
	f.Fuzz(func(t *testing.T, token string, state int32) {
		p, err := parsePage(token, queuev1.State(state))
		if err != nil || token == "" {
			return
		}
		again, err := parsePage(p.String(), queuev1.State(state))
		if err != nil || again != p {
			t.Errorf("%q is %v, written again %v, %v", token, p, again, err)
		}
	})
}
