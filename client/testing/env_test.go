package testing_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	dptest "github.com/deltaplane/deltaplane/client/testing"
)

var mirrored = []string{"pods", "configmaps"}

// within bounds what a test waits for, whatever else the machine does.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("a minute is over"))
	t.Cleanup(cancel)
	return ctx
}

// colours has a controller follow pods that change, and says what is wrong in the end.
func colours(t *testing.T, env *dptest.Env, wrong notes) error {
	t.Helper()
	env.Go(newNotes(env, wrong).run)
	ctx := within(t)
	names := []string{"a", "b", "c"}
	for _, colour := range []string{"red", "blue", "red"} {
		for _, name := range names {
			env.Apply(pod(name, colour))
		}
		if colour == "blue" { // the next change comes while the index may still be behind
			if err := written(ctx, env, names, colour); err != nil {
				return err
			}
			continue
		}
		if err := env.Settled(ctx); err != nil {
			return err
		}
	}
	got := map[string][]string{}
	for _, note := range dptest.List[object](env, "configmaps") {
		got[note.Metadata.Labels["pod"]] = append(got[note.Metadata.Labels["pod"]], note.Data["colour"])
	}
	for _, name := range names {
		if fmt.Sprint(got[name]) != "[red]" {
			return fmt.Errorf("the notes of %s are of colour %v, want one that is red", name, got[name])
		}
	}
	return nil
}

// written waits until the pods have notes of a colour, or nothing more will happen.
func written(ctx context.Context, env *dptest.Env, names []string, colour string) error {
	ctx, cancel := context.WithCancel(ctx)
	settled := make(chan error, 1)
	go func() { settled <- env.Settled(ctx) }()
	defer func() { cancel(); <-settled }()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for over := false; ; {
		n := 0
		for _, note := range dptest.List[object](env, "configmaps") {
			if note.Data["colour"] == colour {
				n++
			}
		}
		if n >= len(names) {
			return nil
		}
		if over {
			return fmt.Errorf("%d of %d pods have a note that is %s, and nothing more will happen", n, len(names), colour)
		}
		select {
		case err := <-settled:
			close(settled)
			if over = true; err != nil {
				return err
			}
		case <-tick.C:
		}
	}
}

func TestAControllerIsSeenToComeToRest(t *testing.T) {
	t.Parallel()
	env := dptest.Start(t, dptest.Config{Resources: mirrored})
	if err := colours(t, env, notes{}); err != nil {
		t.Fatal(err)
	}
	env.Delete("pods", "default/a")
	if err := env.Settled(within(t)); err != nil {
		t.Fatal(err)
	}
	if note := dptest.Get[object](env, "configmaps", "default/a"); note != nil {
		t.Errorf("the note of a pod that is gone: %+v", note)
	}
}

func TestACorrectControllerPassesEverySeed(t *testing.T) {
	dptest.Run(t, dptest.Config{Resources: mirrored}, 30, func(t *testing.T, env *dptest.Env) {
		if err := colours(t, env, notes{}); err != nil {
			t.Error(err)
		}
	})
}
