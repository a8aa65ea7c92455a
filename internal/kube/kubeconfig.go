package kube

import (
	"errors"
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Rewrite makes a kubeconfig that names another server than the one that its user is of: one that
// passes requests on.
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

// ErrNoCredentials says that a user shows neither a bearer token nor a client certificate: nothing
// by which another server could know it.
var ErrNoCredentials = errors.New("the user shows neither a bearer token nor a client certificate")

// rewrittenName is that of the cluster in a kubeconfig that was rewritten.
const rewrittenName = "deltaplane"

// Make returns the kubeconfig, and whether its user shows a client certificate alone.
func (r Rewrite) Make() (made []byte, certificate bool, err error) {
	out, err := r.read()
	if err != nil {
		return nil, false, err
	}
	for name, user := range out.AuthInfos {
		token := user.Token != "" || user.TokenFile != "" || user.Exec != nil || user.AuthProvider != nil
		certificate = !token && (user.ClientCertificate != "" || len(user.ClientCertificateData) > 0)
		if !token && !certificate {
			return nil, false, fmt.Errorf("%w: %q", ErrNoCredentials, name)
		}
	}
	context := out.Contexts[out.CurrentContext]
	context.Cluster = rewrittenName
	out.Clusters = map[string]*api.Cluster{rewrittenName: {Server: r.Server, CertificateAuthorityData: r.CA}}
	if made, err = clientcmd.Write(*out); err != nil {
		return nil, false, fmt.Errorf("kube: kubeconfig: %w", err)
	}
	return made, certificate, nil
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
		return nil, fmt.Errorf("%w: context %q names no user", ErrNoCredentials, out.CurrentContext)
	}
	return out, nil
}
