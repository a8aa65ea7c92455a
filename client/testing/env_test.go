package testing_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/client"
	dptest "github.com/deltaplane/deltaplane/client/testing"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
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
	names := strings.Split("abcdefgh", "")
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

func TestACorrectControllerOnTheLogPassesEverySeed(t *testing.T) {
	dptest.Run(t, dptest.Config{Resources: mirrored}, 10, func(t *testing.T, env *dptest.Env) {
		if err := colours(t, env, notes{onLog: true}); err != nil {
			t.Error(err)
		}
	})
}

const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

func TestACustomResourceIsMirrored(t *testing.T) {
	t.Parallel()
	env := dptest.Start(t, dptest.Config{Resources: []string{"widgets.example.com"}, Objects: []any{widgets}})
	index := client.NewIndex(env.Index())
	if _, err := index.Collections(t.Context()); err != nil {
		t.Fatal(err)
	}
	env.Apply("{apiVersion: example.com/v1, kind: Widget, metadata: {name: w}, size: 1}")
	env.Apply("{apiVersion: example.com/v1, kind: Widget, metadata: {name: w}, size: 2}")
	if err := env.Settled(within(t)); err != nil {
		t.Fatal(err)
	}
	w, _, err := index.Get(t.Context(), "widgets", "default/w", client.ReadOptions{})
	if err != nil || !strings.Contains(string(w.Payload), `"size":2`) {
		t.Errorf("the index has %s, %v", w.Payload, err)
	}
}

func TestWhatDoesNotSettleIsNamed(t *testing.T) {
	t.Parallel()
	env := dptest.Start(t, dptest.Config{})
	queue := client.NewQueue(env.Queue(), "dev/test", "")
	if _, err := queue.Configure(t.Context(), client.QueueConfig{}); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		do   func() error
		want string
	}{
		{func() error { return nil }, "the connection to the queue was asked for and is not used yet"},
		{func() error {
			_, err := queue.Add(t.Context(), client.Keys("ns/a")...)
			return err
		}, "the connection to the queue was asked for and is not used yet"},
		{func() error {
			_, err := queuev1.NewQueueServiceClient(env.Queue()).Get(t.Context(), &queuev1.GetRequest{Queue: "dev/test", SessionId: "test"})
			return err
		}, "dev/test has 0 keys ready and 1 leased"},
	} {
		if err := row.do(); err != nil {
			t.Fatal(err)
		}
		for ctx := within(t); ; { // the index may have been behind
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			err := env.Settled(short)
			cancel()
			if err != nil && strings.Contains(err.Error(), row.want) {
				break
			}
			if err == nil || ctx.Err() != nil {
				t.Fatalf("%v, want %q", err, row.want)
			}
		}
	}
}
