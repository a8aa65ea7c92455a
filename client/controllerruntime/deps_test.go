package controllerruntime

import (
	_ "go.uber.org/goleak"
	_ "github.com/google/go-cmp/cmp"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/client-go/kubernetes"
	_ "sigs.k8s.io/controller-runtime"
	_ "sigs.k8s.io/controller-runtime/pkg/envtest"
	_ "github.com/deltaplane/deltaplane/client/testing"
	_ "github.com/deltaplane/deltaplane/client/clientgo"
)
