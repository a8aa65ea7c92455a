// Command go-controller keeps a page, a ConfigMap, for each Site, a custom resource, and archives
// it before the Site goes. It is the controller of docs/tutorial.md, a module of its own: of
// Deltaplane it imports the public client alone, and it runs in as many replicas as you start.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/controller"
	"github.com/deltaplane/deltaplane/client/deltalog"
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
	natsURL := flag.String("nats", "", "URL of the delta log, to follow it in place of the index")
	cluster := flag.String("cluster", "dev", "name of the cluster in the index")
	apiURL := flag.String("api", "http://127.0.0.1:7448", "URL of the API server that is written to")
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file of that API server, in place of -api")
	health := flag.String("health", "", "address of the health probe; empty for none")
	verbose := flag.Bool("v", false, "log every read and write, as JSON")
	flag.Parse()
	if *verbose {
		slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})))
	}
	if *kubeconfig != "" {
		*apiURL = ""
	}
	config, err := clientcmd.BuildConfigFromFlags(*apiURL, *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1 // the queue's rate limiter is enough
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

	options := controller.Options{Name: "sites", Cluster: *cluster}
	if *natsURL != "" {
		if options.Deltas, err = deltalog.Connect(ctx, deltalog.Config{URL: *natsURL}); err != nil {
			return err
		}
		defer options.Deltas.Close()
	}
	ctl := controller.New(index, queue, options).For(sites.collection).Owns(configMaps.collection)
	config.Wrap(ctl.Transport("")) // no update removes what the index leaves out
	api, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	if *health != "" {
		go func() { fmt.Fprintln(os.Stderr, http.ListenAndServe(*health, ctl.Health())) }()
	}
	p := publisher{writer{api, ctl}}
	return ctl.Run(ctx, func(ctx context.Context, req controller.Request) (controller.Result, error) {
		slog.DebugContext(ctx, "begins", slog.String("key", req.Key()))
		result, err := p.reconcile(ctx, req)
		slog.DebugContext(ctx, "ends", slog.String("key", req.Key()), slog.Any("error", err))
		return result, err
	})
}
