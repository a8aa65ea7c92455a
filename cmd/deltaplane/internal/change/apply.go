package change

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// manifest is one object of a file.
type manifest struct {
	raw       []byte // JSON
	name      string
	namespace string
	resource  kube.Resource
}

func (m *manifest) ref() kube.Ref {
	ref := kube.Ref{Resource: m.resource, Name: m.name}
	if m.resource.Namespaced {
		ref.Namespace = m.namespace
	}
	return ref
}

func (m *manifest) String() string {
	text := strings.ToLower(m.resource.Kind)
	if m.resource.Group != "" {
		text += "." + m.resource.Group
	}
	return text + "/" + m.name
}

// applyFlags are the flags of `apply` and `delete`.
type applyFlags struct {
	file      string
	namespace string
	kube      cli.KubeFlags
}

func (a *applyFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&a.file, "filename", "f", "", "YAML or JSON `file` with one or more objects, - for standard input (required)")
	cmd.Flags().StringVarP(&a.namespace, "namespace", "n", "default", "`namespace` of objects that name none")
	a.kube.Register(cmd.Flags())
}

// NewApply is the command "apply".
func NewApply() *cobra.Command {
	var a applyFlags
	var validate string
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create or change objects on the API server",
		Long: `Create the objects of a file, or change those that exist by a merge patch with the
object of the file: fields the file names are set, others stay. kubectl apply, which also
removes fields, works as well, against the same API server.

A field that the resource does not have is an error, unless --validate=ignore drops it.`,
		Example: `  deltaplane apply -f examples/job.yaml`,
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if validate != "strict" && validate != "ignore" {
				return &cli.UsageError{Err: fmt.Errorf("--validate %q: want strict or ignore", validate)}
			}
			options := kube.WriteOptions{Strict: validate == "strict"}
			return a.each(cmd, func(ctx context.Context, client *kube.Client, m *manifest) (string, error) {
				if m.name == "" {
					created, err := client.Create(ctx, m.ref(), m.raw, options)
					m.name = gjson.GetBytes(created, "metadata.name").String()
					return "created", err
				}
				_, err := client.Create(ctx, m.ref(), m.raw, options)
				if !kube.IsAlreadyExists(err) {
					return "created", err
				}
				before, err := client.Get(ctx, m.ref())
				if err != nil {
					return "", err
				}
				after, err := client.Patch(ctx, m.ref(), kube.MergePatch, m.raw, options)
				if err == nil && sameObject(before, after) {
					return "unchanged", nil
				}
				return "changed", err
			})
		},
	}
	a.register(cmd)
	cmd.Flags().StringVar(&validate, "validate", "strict", "what becomes of fields that a resource does not have: strict or ignore")
	return cmd
}

// NewDelete is the command "delete".
func NewDelete() *cobra.Command {
	var a applyFlags
	var ignoreNotFound bool
	var propagation string
	cmd := &cobra.Command{
		Use:     "delete -f FILE",
		Short:   "Delete objects on the API server",
		Example: `  deltaplane delete -f examples/job.yaml`,
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			policies := map[string]kube.Propagation{"background": kube.Background, "foreground": kube.Foreground, "orphan": kube.Orphan}
			policy, ok := policies[propagation]
			if !ok {
				return &cli.UsageError{Err: fmt.Errorf("--cascade %q: want background, foreground or orphan", propagation)}
			}
			return a.each(cmd, func(ctx context.Context, client *kube.Client, m *manifest) (string, error) {
				if m.name == "" {
					return "", &cli.UsageError{Err: fmt.Errorf("%s: an object to delete needs metadata.name", m.resource.Kind)}
				}
				_, err := client.Delete(ctx, m.ref(), kube.DeleteOptions{Propagation: policy})
				if ignoreNotFound && kube.IsNotFound(err) {
					return "not found", nil
				}
				return "deleted", err
			})
		},
	}
	a.register(cmd)
	cmd.Flags().BoolVar(&ignoreNotFound, "ignore-not-found", false, "objects that do not exist are no error")
	cmd.Flags().StringVar(&propagation, "cascade", "background", "what becomes of owned objects: background, foreground or orphan")
	return cmd
}

// each does something with every object of the file, says what became of it, and goes on after
// errors.
func (a *applyFlags) each(cmd *cobra.Command, do func(context.Context, *kube.Client, *manifest) (string, error)) error {
	if a.file == "" {
		return &cli.UsageError{Err: errors.New("-f FILE is required")}
	}
	client, err := a.kube.Load()
	if err != nil {
		return err
	}
	objects, err := readManifests(cmd.InOrStdin(), a.file)
	if err != nil {
		return err
	}
	var errs []error
	for i, raw := range objects {
		m, err := a.resolve(cmd.Context(), client, raw)
		if err == nil {
			var done string
			if done, err = do(cmd.Context(), client, m); err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", m, done)
			} else {
				err = fmt.Errorf("%s: %w", m, err)
			}
		} else {
			err = fmt.Errorf("%s: object %d: %w", a.file, i+1, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// resolve finds out what kind of object raw is and fills in its namespace.
func (a *applyFlags) resolve(ctx context.Context, client *kube.Client, raw []byte) (*manifest, error) {
	m := &manifest{raw: raw, name: gjson.GetBytes(raw, "metadata.name").String()}
	apiVersion, kind := gjson.GetBytes(raw, "apiVersion").String(), gjson.GetBytes(raw, "kind").String()
	if apiVersion == "" || kind == "" {
		return nil, &cli.UsageError{Err: errors.New("apiVersion and kind are required")}
	}
	group, version, found := strings.Cut(apiVersion, "/")
	if !found {
		group, version = "", apiVersion
	}
	resources, err := client.Discover(ctx, group, version)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", apiVersion, err)
	}
	for _, r := range resources {
		if r.Kind == kind {
			m.resource = r
		}
	}
	if m.resource.Name == "" {
		return nil, fmt.Errorf("%s %s: %w", apiVersion, kind, kube.ErrNotServed)
	}
	if m.namespace = gjson.GetBytes(raw, "metadata.namespace").String(); m.namespace == "" {
		m.namespace = a.namespace
	}
	return m, nil
}

// sameObject reports whether two versions differ only in what others write meanwhile: status,
// version and field managers.
func sameObject(a, b []byte) bool {
	for _, path := range []string{"status", "metadata.resourceVersion", "metadata.managedFields"} {
		var errA, errB error
		if a, errA = sjson.DeleteBytes(a, path); errA != nil {
			return false
		}
		if b, errB = sjson.DeleteBytes(b, path); errB != nil {
			return false
		}
	}
	return bytes.Equal(a, b)
}

// readManifests reads the objects of a YAML or JSON file; the items of a List count one by one.
func readManifests(stdin io.Reader, path string) ([][]byte, error) {
	in := stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, &cli.UsageError{Err: err}
		}
		defer file.Close()
		in = file
	}
	reader := utilyaml.NewYAMLOrJSONDecoder(bufio.NewReader(in), 4096)
	var objects [][]byte
	for {
		var raw json.RawMessage
		switch err := reader.Decode(&raw); {
		case errors.Is(err, io.EOF):
			if len(objects) == 0 {
				return nil, &cli.UsageError{Err: fmt.Errorf("%s holds no objects", path)}
			}
			return objects, nil
		case err != nil:
			return nil, &cli.UsageError{Err: fmt.Errorf("%s: object %d: %w", path, len(objects)+1, err)}
		case len(bytes.TrimSpace(raw)) == 0 || bytes.Equal(bytes.TrimSpace(raw), []byte("null")):
			continue
		}
		if items := gjson.GetBytes(raw, "items"); strings.HasSuffix(gjson.GetBytes(raw, "kind").String(), "List") && items.IsArray() {
			for _, item := range items.Array() {
				objects = append(objects, []byte(item.Raw))
			}
			continue
		}
		objects = append(objects, raw)
	}
}
