package nodeagent

import "testing"

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"metadata":{"namespace":"ns","name":"a","uid":"1","resourceVersion":"5","deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{"nodeName":"n"}}`,
		`{"metadata":{"name":"a"}}`, `{"metadata":[]}`, `{"spec":{"containers":{}}}`, `null`, `{`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		pod, err := decode(raw)
		if err == nil && (pod == nil || pod.UID == "" || pod.Name == "") {
			t.Errorf("decode(%q) = %v without an error, and the pod cannot be told from others", raw, pod)
		}
		if err != nil && pod != nil {
			t.Errorf("decode(%q) = %v and an error", raw, pod)
		}
		if err == nil {
			// Whatever is taken in must not make the loop panic.
			_ = differ(pod, pod)
			_ = older(pod, pod)
		}
	})
}
