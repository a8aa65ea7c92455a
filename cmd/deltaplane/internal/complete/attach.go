package complete

import (
	"strings"

	"github.com/spf13/cobra"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// places are what the arguments of commands are, by the command's path.
var places = map[string]cobra.CompletionFunc{
	"get":                arguments(false, collection, of(keys)),
	"watch":              arguments(false, collection, of(keys)),
	"why":                arguments(false, collection, of(keys)),
	"why queue":          arguments(false, queue, queueKeys(queuev1.State_STATE_UNSPECIFIED)),
	"describe":           arguments(false, collection, of(keys)),
	"describe node":      arguments(false, in("nodes")),
	"describe pod":       arguments(false, in("pods")),
	"logs":               arguments(false, in("pods")),
	"index ls":           arguments(false, collection),
	"index values":       arguments(false, collection, of(indexes)),
	"index add":          arguments(false, collection),
	"index remove":       arguments(true, collection, of(indexes)),
	"reflection ls":      arguments(false, reflected),
	"reflection relist":  arguments(false, reflected),
	"reflection remove":  arguments(false, added),
	"node stop":          arguments(true, node),
	"node start":         arguments(true, node),
	"node flap":          arguments(false, node),
	"queue describe":     arguments(false, queue, queueKeys(queuev1.State_STATE_UNSPECIFIED)),
	"queue add":          arguments(true, queue, queueKeys(queuev1.State_STATE_UNSPECIFIED)),
	"queue forget":       arguments(true, queue, queueKeys(queuev1.State_STATE_UNSPECIFIED)),
	"queue retry":        arguments(true, queue, queueKeys(queuev1.State_STATE_DELAYED, queuev1.State_STATE_DEAD)),
	"queue delete":       arguments(true, queue, queueKeys(queuev1.State_STATE_DEAD, queuev1.State_STATE_DELAYED)),
	"queue release":      arguments(true, queue, queueKeys(queuev1.State_STATE_PROCESSING, queuev1.State_STATE_DIRTY)),
	"queue ls":           arguments(false, queue),
	"queue items":        arguments(false, queue),
	"queue dead ls":      arguments(false, queue),
	"queue backoff get":  arguments(false, queue),
	"queue backoff next": arguments(false, queue), "queue backoff reset": arguments(false, queue),
	"queue configure": arguments(false, queue),
	"queue pause":     arguments(false, queue), "queue resume": arguments(false, queue),
	"queue close": arguments(false, queue), "queue open": arguments(false, queue),
	"queue drain": arguments(false, queue), "queue remove": arguments(false, queue),
}

// flags are what the values of flags are, of every command that asks services.
var flags = map[string]source{"namespace": namespace, "index": of(indexValue), "cluster": cluster}

// Attach completes the commands below a root.
func Attach(root *cobra.Command) {
	for _, c := range root.Commands() {
		Attach(c)
	}
	if c := places[strings.TrimPrefix(root.CommandPath(), root.Root().Name()+" ")]; c != nil {
		root.ValidArgsFunction = c
	}
	if root.Flags().Lookup("index-url") == nil {
		return
	}
	for name, from := range flags {
		if root.Flags().Lookup(name) != nil {
			cobra.CheckErr(root.RegisterFlagCompletionFunc(name, flag(from)))
		}
	}
}
