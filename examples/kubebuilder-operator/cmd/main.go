// Command kubebuilder-operator is the operator of Sites, as kubebuilder scaffolds one, on a
// Deltaplane: it runs in as many active replicas as you start.
package main

import (
	"flag"
	"log/slog"
	"os"

	examplev1 "example.com/kubebuilder-operator/api/v1"
	"example.com/kubebuilder-operator/internal/controller"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/deltaplane/deltaplane/client"
	deltaplane "github.com/deltaplane/deltaplane/client/controllerruntime"
)

var (
	scheme   = runtime.NewScheme()
	setupLog = ctrl.Log.WithName("setup")
)

func init() {
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
}

func main() {
	var metricsAddr, probeAddr string
	var verbose bool
	flag.StringVar(&metricsAddr, "metrics-bind-address", "0", "The address the metrics endpoint binds to; 0 for none.")
	flag.StringVar(&probeAddr, "health-probe-bind-address", "0", "The address the probe endpoint binds to; 0 for none.")
	flag.BoolVar(&verbose, "v", false, "Log every read and write.")
	indexAddr := flag.String("index", "127.0.0.1:7441", "The address of Deltaplane's index.")
	queueAddr := flag.String("queue", "127.0.0.1:7442", "The address of Deltaplane's queue.")
	cluster := flag.String("cluster", "dev", "The name of the cluster in Deltaplane.")
	flag.Parse()
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))

	index, err := client.Dial(*indexAddr, client.DialConfig{})
	fatal(err, "unable to use the address of the index")
	queue, err := client.Dial(*queueAddr, client.DialConfig{})
	fatal(err, "unable to use the address of the queue")
	operator, err := deltaplane.New(index, queue, deltaplane.Options{Name: "sites", Cluster: *cluster, Log: log})
	fatal(err, "unable to create the operator")

	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:                 scheme,
		NewCache:               operator.NewCache,
		NewClient:              operator.NewClient,
		Metrics:                metricsserver.Options{BindAddress: metricsAddr},
		HealthProbeBindAddress: probeAddr,
	})
	fatal(err, "unable to start manager")
	reconciler := &controller.SiteReconciler{Client: mgr.GetClient(), Scheme: mgr.GetScheme()}
	fatal(reconciler.SetupWithManager(mgr, operator), "unable to create controller")
	fatal(mgr.AddHealthzCheck("healthz", healthz.Ping), "unable to set up health check")
	fatal(mgr.AddReadyzCheck("readyz", healthz.Ping), "unable to set up ready check")

	setupLog.Info("starting manager")
	fatal(mgr.Start(ctrl.SetupSignalHandler()), "problem running manager")
}

// fatal ends the program if there is an error.
func fatal(err error, msg string) {
	if err != nil {
		setupLog.Error(err, msg)
		os.Exit(1)
	}
}
