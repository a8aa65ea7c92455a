package inspect

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestAnEventIsAboutAnObjectByUIDOrANodeByName(t *testing.T) {
	t.Parallel()
	type object = corev1.ObjectReference
	for name, c := range map[string]struct {
		about           object
		kind, name, uid string
		want            bool
	}{
		"its own":                             {object{Kind: "Pod", Name: "a", UID: "1"}, "Pod", "a", "1", true},
		"an earlier object of the name":       {object{Kind: "Pod", Name: "a", UID: "0"}, "Pod", "a", "1", false},
		"a node's, of a controller":           {object{Kind: "Node", Name: "n", UID: "1"}, "Node", "n", "1", true},
		"a node's, of a kubelet":              {object{Kind: "Node", Name: "n", UID: "n"}, "Node", "n", "1", true},
		"an earlier node of the name":         {object{Kind: "Node", Name: "n", UID: "0"}, "Node", "n", "1", false},
		"another kind's of a node's name":     {object{Kind: "Pod", Name: "n", UID: "n"}, "Node", "n", "1", false},
		"a pod's that is named by its name":   {object{Kind: "Pod", Name: "a", UID: "a"}, "Pod", "a", "1", false},
		"one without a UID, and no UID given": {object{Kind: "Pod", Name: "b"}, "Pod", "a", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := About(c.about, c.kind, c.name, c.uid); got != c.want {
				t.Errorf("it is about the object: %v, want %v", got, c.want)
			}
		})
	}
}
