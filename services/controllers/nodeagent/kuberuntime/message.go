package kuberuntime

import (
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (m *Manager) terminationMessage(uid types.UID, s *runtimeapi.ContainerStatus) string { return "" }
