// Command go-controller keeps a ConfigMap for each pod that says where the pod runs. It is the
// controller of docs/tutorial.md, a module of its own: it imports the public client alone, and
// runs in as many replicas as you start.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/controller"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	indexAddr := flag.String("index", "127.0.0.1:7441", "address of the index")
	queueAddr := flag.String("queue", "127.0.0.1:7442", "address of the queue")
	apiURL := flag.String("api", "http://127.0.0.1:7448", "URL of the API server that is written to")
	health := flag.String("health", "", "address of the health probe; empty for none")
	flag.Parse()

	index, err := client.Dial(*indexAddr, client.DialConfig{})
	if err != nil {
		return err
	}
	defer index.Close()
	queue, err := client.Dial(*queueAddr, client.DialConfig{})
	if err != nil {
		return err
	}
	defer queue.Close()

	ctl := controller.New(index, queue, controller.Options{Name: "pod-notes"}).For("pods").Owns("configmaps")
	if *health != "" {
		go func() { fmt.Fprintln(os.Stderr, http.ListenAndServe(*health, ctl.Health())) }()
	}
	notes := &notes{ctl: ctl, api: api{*apiURL}}
	return ctl.Run(ctx, notes.reconcile)
}

// notes is the controller: what a pod asks for is a ConfigMap of its name.
type notes struct {
	ctl *controller.Controller
	api api
}

func (n *notes) reconcile(ctx context.Context, req controller.Request) (controller.Result, error) {
	pod, err := controller.Get[object](ctx, n.ctl, "pods", req.Key())
	if errors.Is(err, client.ErrKeyNotFound) {
		return controller.Result{}, nil // the API server collects what the pod owned
	}
	if err != nil {
		return controller.Result{}, err
	}
	if pod.Metadata.DeletionTimestamp != "" {
		return controller.Result{}, nil
	}
	note, err := controller.Get[object](ctx, n.ctl, "configmaps", req.Key())
	if err != nil && !errors.Is(err, client.ErrKeyNotFound) {
		return controller.Result{}, err
	}
	want := noteOf(pod)
	if note != nil && note.Data["node"] == want.Data["node"] {
		return controller.Result{}, nil
	}
	if note != nil { // a note that somebody changed since it was read is a conflict, and comes again
		want.Metadata.ResourceVersion = note.Metadata.ResourceVersion
	}
	written, err := n.api.write(ctx, want)
	if err != nil {
		return controller.Result{}, err
	}
	return controller.Result{}, n.ctl.Wrote(ctx, "configmaps", written.Metadata.ResourceVersion)
}
