package cli

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// Plain is the status that an error of the client holds: commands know what they asked.
func Plain(err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Unwrap()
	}
	return err
}

// steps are what to do next about refusals, by their reasons.
var steps = map[string]string{
	"COLLECTION_NOT_FOUND": `"deltaplane reflection add RESOURCE" mirrors one more resource; [CLUSTER/] before a name is its cluster`,
	"REFLECTION_NOT_FOUND": `"deltaplane reflection ls" lists what is mirrored; what --resources of the reflector names is removed there`,
	"CLUSTER_NOT_FOUND":    `--cluster takes a name that the reflector was started with`,
	"KEY_NOT_FOUND":        `"deltaplane get COLLECTION -o keys" lists the keys there are`,
	"INDEX_NOT_FOUND":      `"deltaplane index ls COLLECTION" lists the indexes, "deltaplane index add" declares one`,
	"QUEUE_NOT_FOUND":      `"deltaplane queue ls" lists the queues; a controller makes its own when it starts, "deltaplane queue configure" makes one`,
	"REVISION_NOT_REACHED": `--at-least takes a version that the cluster has; a longer --timeout waits longer, "deltaplane status" shows how far the index is`,
}

// codeSteps are those of refusals that have no reason of their own.
var codeSteps = map[codes.Code]string{
	codes.PermissionDenied: `"deltaplane whoami" says who you are for the service, "deltaplane auth can-i VERB RESOURCE" what you may; docs/access.md says who grants it`,
	codes.Unauthenticated:  `--token-file, or --tls-cert with --tls-key, says who you are; --tls-ca names who signs the service's certificate`,
}

// fieldFlags are flags that are called otherwise than the fields they fill.
var fieldFlags = map[string]string{"label_selector": "selector", "namespaces": "namespace", "values": "index", "index_value": "index"}

// Advise adds to the error of a command what to do next, unless it says so already.
func Advise(cmd *cobra.Command, err error) error {
	if err == nil || Cancelled(err) {
		return err
	}
	if _, said := errors.AsType[*HintError](err); said {
		return err
	}
	if hint := advice(cmd.Flags(), err); hint != "" {
		return &HintError{Err: err, Hint: hint}
	}
	return err
}

func advice(flags *pflag.FlagSet, err error) string {
	if s, ok := errors.AsType[*kube.StatusError](err); ok && (s.Code == 401 || s.Code == 403) {
		return `the API server refuses: --kubeconfig and --context choose as whom it is asked, "kubectl auth can-i" tells what that user may`
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" && flags.Lookup("api-url") != nil {
		return `no API server answers there (--api-url): --kubeconfig names a cluster, "deltaplane up" runs one`
	}
	if hint := steps[rpc.Reason(err)]; hint != "" {
		if found := missingFrom.FindStringSubmatch(Message(err)); found != nil {
			hint = strings.Replace(hint, "COLLECTION", found[1], 1)
		}
		if near := meant(Message(err)); near != "" {
			return fmt.Sprintf("did you mean %q? %s", near, hint)
		}
		return hint
	}
	if hint := codeSteps[rpc.Code(err)]; hint != "" {
		return hint
	}
	var lines []string
	for _, field := range slices.Sorted(maps.Keys(rpc.Violations(err))) {
		if flag := flagOf(flags, field); flag != "" && flag != field {
			lines = append(lines, fmt.Sprintf("%s is what --%s gives", field, flag))
		}
	}
	return strings.Join(lines, "\n")
}

// listed finds in a message what was asked for, and what there is.
var listed = regexp.MustCompile(`"([^"]+)".*; there are: ([^()]+)`)

// missingFrom finds in a message the collection that does not have a key or an index.
var missingFrom = regexp.MustCompile(`not found: ".*" (?:in|is not declared for) (\S+?);? `)

// meant is the name that is nearest to the one asked for, of those that a message lists; empty when
// none is near.
func meant(message string) string {
	found := listed.FindStringSubmatch(message)
	if found == nil {
		return ""
	}
	asked := found[1]
	var names []string
	for name := range strings.SplitSeq(strings.TrimSpace(found[2]), ", ") {
		names = append(names, name)
		if !strings.Contains(asked, "/") { // of a collection its resource alone was asked for
			_, rest, _ := strings.Cut(name, "/")
			resource, _, _ := strings.Cut(rest, ".")
			names = append(names, resource)
		}
	}
	return nearest(asked, names)
}

// flagOf is the flag that fills a field of a request; empty when none is known.
func flagOf(flags *pflag.FlagSet, field string) string {
	last := field[strings.LastIndex(field, ".")+1:]
	last, _, _ = strings.Cut(last, "[")
	for _, name := range []string{fieldFlags[last], strings.ReplaceAll(last, "_", "-")} {
		if name != "" && flags.Lookup(name) != nil {
			return name
		}
	}
	return ""
}

// UnknownFlag adds to the error of a flag that a command does not have the one that may be meant.
func UnknownFlag(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return &UsageError{Err: err}
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	hint := fmt.Sprintf("%q lists the flags", cmd.CommandPath()+" --help")
	if near := nearest(unknown.GetSpecifiedName(), names); near != "" && len(unknown.GetSpecifiedName()) > 1 {
		hint = fmt.Sprintf("did you mean --%s? %s", near, hint)
	}
	return &HintError{Err: &UsageError{Err: err}, Hint: hint}
}
