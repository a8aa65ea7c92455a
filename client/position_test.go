package client_test

import (
	"errors"
	"testing"

	"github.com/deltaplane/deltaplane/client"
)

func FuzzAPositionIsReadAsItWasWritten(f *testing.F) {
	for _, text := range []string{"", "1.2.3.4.5.6.7", "0.0.0.0.0.0.1", "1.2.3", "1.2.3.4.5.6.x", "1.2.3.4.5.6.18446744073709551616"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var p client.Position
		if err := p.UnmarshalText([]byte(text)); err != nil {
			if !errors.Is(err, client.ErrPosition) || p != (client.Position{}) {
				t.Errorf("%q is read as %+v: %v", text, p, err)
			}
			return
		}
		written, err := p.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var again client.Position
		if err := again.UnmarshalText(written); err != nil || again != p {
			t.Errorf("%q is read as %+v, and what that is written as as %+v: %v", text, p, again, err)
		}
	})
}
