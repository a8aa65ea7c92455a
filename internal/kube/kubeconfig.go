package kube

import (
	"errors"
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Rewrite makes a kubeconfig that names another server than the one that its user is of: one that
// passes requests on, with the bearer tokens in them.
type Rewrite struct {
	// Kubeconfig is the file the user is taken from, Context one of it; by default those that kubectl
	// would take.
	Kubeconfig, Context string
	// Server is the URL of the other server, CA the certificates of the authorities that it is known
	// by; none are those of the host.
	Server string
	CA     []byte
	// NoUser reads no file, and names nobody.
	NoUser bool
}

// ErrNoToken says that a user shows no bearer token, and so nothing that can be passed on.
var ErrNoToken = errors.New("the user shows no bearer token")

// rewrittenName is that of the cluster in a kubeconfig that was rewritten.
const rewrittenName = "deltaplane"

// Make returns the kubeconfig.
func (r Rewrite) Make() ([]byte, error) {
	out, err := r.read()
	if err != nil {
		return nil, err
	}
	context := out.Contexts[out.CurrentContext]
	context.Cluster = rewrittenName
	out.Clusters = map[string]*api.Cluster{rewrittenName: {Server: r.Server, CertificateAuthorityData: r.CA}}
	made, err := clientcmd.Write(*out)
	if err != nil {
		return nil, fmt.Errorf("kube: kubeconfig: %w", err)
	}
	return made, nil
}

// read is the kubeconfig with the one context, and its user.
func (r Rewrite) read() (*api.Config, error) {
	if r.NoUser {
		out := api.NewConfig()
		out.CurrentContext = rewrittenName
		out.Contexts[rewrittenName] = &api.Context{}
		return out, nil
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = r.Kubeconfig
	out, err := rules.Load()
	if err != nil {
		return nil, fmt.Errorf("kube: kubeconfig: %w", err)
	}
	if r.Context != "" {
		out.CurrentContext = r.Context
	}
	if out.Contexts[out.CurrentContext] == nil {
		return nil, fmt.Errorf("kube: the kubeconfig has no context %q", out.CurrentContext)
	}
	if err := errors.Join(api.MinifyConfig(out), clientcmd.ResolveLocalPaths(out)); err != nil {
		return nil, fmt.Errorf("kube: kubeconfig: %w", err)
	}
	if len(out.AuthInfos) == 0 {
		return nil, fmt.Errorf("%w: context %q names no user", ErrNoToken, out.CurrentContext)
	}
	for name, user := range out.AuthInfos {
		if user.Token == "" && user.TokenFile == "" && user.Exec == nil && user.AuthProvider == nil {
			return nil, fmt.Errorf("%w: %q", ErrNoToken, name)
		}
		user.ClientCertificate, user.ClientCertificateData, user.ClientKey, user.ClientKeyData = "", nil, "", nil
	}
	return out, nil
}
