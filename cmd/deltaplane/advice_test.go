package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// strict is an index that refuses who asks.
type strict struct {
	indexv1.UnimplementedIndexServiceServer
	code codes.Code
}

func (s strict) ListCollections(context.Context, *indexv1.ListCollectionsRequest) (*indexv1.ListCollectionsResponse, error) {
	return nil, status.Error(s.code, "refused")
}

func TestErrorsNameTheFieldAndTheNextStep(t *testing.T) {
	t.Parallel()
	r := startUp(t)
	until(t, func() bool {
		_, _, code := command(t.Context(), "", append([]string{"get", "nodes", "node-1"}, r.ask...)...)
		return code == cli.ExitOK
	})
	refusing := func(code codes.Code) string {
		return servedAt(t, func(s *grpc.Server) { indexv1.RegisterIndexServiceServer(s, strict{code: code}) })
	}
	away, _ := nobody(t)
	kubeconfig := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(kubeconfig, []byte("{apiVersion: v1, kind: Config, contexts: []}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]struct {
		code int
		says []string
	}{
		// what there is not
		"get jobz":                           {cli.ExitNotFound, []string{`"jobz"`, "dev/jobs.v1.batch", `did you mean "jobs"?`, "reflection add"}},
		"watch other/pods":                   {cli.ExitNotFound, []string{`"other/pods"`, "[CLUSTER/]"}},
		"describe gadget g":                  {cli.ExitNotFound, []string{`"gadget"`, "reflection add"}},
		"why gadgets g":                      {cli.ExitNotFound, []string{`collection not found: "gadgets"`, "reflection add"}},
		"index ls gadgets":                   {cli.ExitNotFound, []string{`"gadgets"`, "reflection add"}},
		"get pods nix -n shop":               {cli.ExitNotFound, []string{`"shop/nix" in dev/pods.v1`, `"deltaplane get dev/pods.v1 -o keys"`}},
		"get pods nix":                       {cli.ExitNotFound, []string{"-n names another"}},
		"describe job nix":                   {cli.ExitNotFound, []string{"-n names another"}},
		"describe node nix":                  {cli.ExitNotFound, []string{`deltaplane: key not found: "nix" in dev/nodes.v1`, `"deltaplane get dev/nodes.v1 -o keys"`}},
		"describe pod nix":                   {cli.ExitNotFound, []string{`"default/nix" in dev/pods.v1`, `"deltaplane get dev/pods.v1 -o keys"`}},
		"logs nix":                           {cli.ExitNotFound, []string{`"default/nix" in dev/pods.v1`, `"deltaplane get dev/pods.v1 -o keys"`}},
		"get pods --index nod=x":             {cli.ExitNotFound, []string{`"nod" in dev/pods.v1`, `did you mean "node"?`, `"deltaplane index ls dev/pods.v1"`}},
		"index values po nod":                {cli.ExitNotFound, []string{`did you mean "node"?`, "index add"}},
		"queue items dev/jobs":               {cli.ExitNotFound, []string{`"dev/jobs"`, `did you mean "dev/job"?`, "queue ls", "queue configure"}},
		"queue add nothing k":                {cli.ExitNotFound, []string{`"nothing"`, "queue ls"}},
		"queue describe dev/job nix":         {cli.ExitNotFound, []string{`"nix"`, `"deltaplane queue items dev/job"`}},
		"reflection relist gadgets":          {cli.ExitNotFound, []string{`"gadgets"`, "reflection add"}},
		"reflection remove gadgets":          {cli.ExitNotFound, []string{`"gadgets"`, "reflection ls"}},
		"reflection add pods --cluster prod": {cli.ExitNotFound, []string{`"prod"`, "--cluster"}},
		// what cannot be read
		"get pods -l 'a":                          {cli.ExitUsage, []string{"label_selector is what --selector gives"}},
		"get pods --field-selector a.b=c":         {cli.ExitUsage, []string{"field_selector is what --field-selector gives"}},
		"get pods --index node":                   {cli.ExitUsage, []string{"--index", "name=value"}},
		"get pods --sort-by {":                    {cli.ExitUsage, []string{"--sort-by"}},
		"index add pods x --field a[":             {cli.ExitUsage, []string{"indexers[0].field"}},
		"queue configure dev/job --partitions 99": {cli.ExitUsage, []string{"config.partitions is what --partitions gives"}},
		"get pods --namspace x":                   {cli.ExitUsage, []string{"--namspace", "did you mean --namespace?"}},
		"top --xyz":                               {cli.ExitUsage, []string{"--xyz", `"deltaplane top --help"`}},
		"queue itms":                              {cli.ExitUsage, []string{`"itms"`, `did you mean "items"?`}},
		"queue frobnicate":                        {cli.ExitUsage, []string{`"frobnicate"`, `"deltaplane queue --help"`}},
		// who does not answer, or refuses
		"get pods --index-url " + away:                                 {cli.ExitUnavailable, []string{"--index-url", `"deltaplane up"`}},
		"queue ls --queue-url " + away:                                 {cli.ExitUnavailable, []string{"--queue-url", `"deltaplane up"`}},
		"get pods --index-url no,port\tat":                             {cli.ExitUsage, []string{"host:port"}},
		"get pods --token-file /nowhere":                               {cli.ExitUsage, []string{"--token-file", "/nowhere"}},
		"top --once --tls-ca /nowhere":                                 {cli.ExitUsage, []string{"--tls-ca", "/nowhere"}},
		"node stop node-1 --api-url http://" + away:                    {cli.ExitUnavailable, []string{away, "--api-url", "--kubeconfig"}},
		"node stop node-1 --context nope --kubeconfig " + kubeconfig:   {cli.ExitUsage, []string{"--kubeconfig", `"nope"`, "kubectl config get-contexts"}},
		"index ls pods --index-url " + refusing(codes.Unauthenticated): {cli.ExitRefused, []string{"refused", "--token-file", "--tls-cert"}},
		"get pods --index-url " + refusing(codes.PermissionDenied):     {cli.ExitRefused, []string{"refused", "deltaplane whoami", "auth can-i"}},
	} {
		args := strings.Split(line, " ")
		for _, flags := range [][]string{r.ask[:2], r.ask[2:4], r.ask[4:]} { // those of the command, unless the line has another
			if c, _, err := newRoot(streams{}).Find(args); err == nil && c.Flags().Lookup(strings.TrimPrefix(flags[0], "--")) != nil && !slices.Contains(args, flags[0]) {
				args = append(args, flags...)
			}
		}
		_, errs, code := command(t.Context(), "", args...)
		if code != want.code {
			t.Errorf("%s exits %d, want %d: %s", line, code, want.code, errs)
		}
		for _, text := range want.says {
			if !strings.Contains(errs, text) {
				t.Errorf("%s does not say %q:\n%s", line, text, errs)
			}
		}
	}
	if _, errs, code := command(t.Context(), "", append([]string{"get", "pods", "-n", "shop"}, r.ask...)...); code != cli.ExitOK || !strings.Contains(errs, "in the namespace shop; -A") {
		t.Errorf("an empty namespace: exit %d, %s", code, errs)
	}
}
