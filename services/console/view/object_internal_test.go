package view

import (
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/client"
)

func TestAnObjectThatIsGoneAfterAGapKeepsItsLastVersion(t *testing.T) {
	t.Parallel()
	o := &object{key: "default/one"}
	one := client.Object{Key: "default/one", ResourceVersion: "1", Payload: []byte(`{"v":"first"}`)}
	shown := func() bool {
		t.Helper()
		m := o.state.GetObject()
		if !strings.Contains(m.GetYaml(), "v: first") {
			t.Fatalf("shown is %v", o.state)
		}
		return m.GetPresent()
	}
	o.take(&client.Event{Type: client.EventAdded, Object: one})
	if !shown() {
		t.Error("an object that is there is shown as absent")
	}
	seen := o.state.GetObject().GetSeenAt()
	o.fail(client.ErrStreamEnded)
	o.take(&client.Event{Type: client.EventBookmark})
	if !shown() || !o.state.GetObject().GetSeenAt().AsTime().Equal(seen.AsTime()) {
		t.Errorf("after a failure %v is shown, want what was seen at %v", o.state, seen)
	}
	o.take(&client.Event{Type: client.EventGap})
	o.take(&client.Event{Type: client.EventBookmark})
	if !shown() {
		t.Error("an object is absent before that is known")
	}
	o.take(&client.Event{Type: client.EventInitialEnd})
	if shown() {
		t.Error("an object that is gone is shown as there")
	}
}
