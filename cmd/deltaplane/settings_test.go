package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/goldentest"
)

func commands() *cobra.Command {
	return newRoot(streams{In: strings.NewReader(""), Out: &buffer{}, Err: &buffer{}})
}

// find is the command of a path such as "serve queue".
func find(t *testing.T, root *cobra.Command, path string) *cobra.Command {
	t.Helper()
	c, _, err := root.Find(strings.Fields(path))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var long = []string{"up", "serve reflector", "serve indexer", "serve queue", "serve gateway", "serve controllers", "serve node"}

func TestThePageOfSettingsIsCurrent(t *testing.T) {
	t.Parallel()
	goldentest.Compare(t, "../../../docs/settings.md", cli.Page(commands()))
}

func TestHelpShowsTheTwentyFlagsThatPeopleNeedAndHelpAllTheOthers(t *testing.T) {
	t.Parallel()
	root := commands()
	for _, path := range long {
		shown := 0
		find(t, root, path).Flags().VisitAll(func(f *pflag.Flag) {
			if cli.Essential(f) {
				shown++
			}
		})
		if shown != 20 {
			t.Errorf("%s --help shows %d flags", path, shown)
		}
	}
	short, _, code := command(t.Context(), "", "up", "--help")
	if code != cli.ExitOK || !strings.Contains(short, "--nats-url") || strings.Contains(short, "--queue-max-sessions") {
		t.Errorf("up --help exited with %d:\n%s", code, short)
	}
	all, _, code := command(t.Context(), "", "up", "--help-all")
	if code != cli.ExitOK || !strings.Contains(all, "--nats-url") || !strings.Contains(all, "--queue-max-sessions") {
		t.Errorf("up --help-all exited with %d:\n%s", code, all)
	}
}

func TestEveryFlagOfAServiceHasASection(t *testing.T) {
	t.Parallel()
	root := commands()
	for _, path := range append(long, "serve devcluster") {
		find(t, root, path).LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if cli.SectionOf(f) == "Other" && !strings.HasPrefix(f.Name, "help") {
				t.Errorf("--%s of %s has no section: register it within cli.Section", f.Name, path)
			}
		})
	}
}

// apply runs a command's settings without the command.
func apply(t *testing.T, path string, environment []string, config string) string {
	t.Helper()
	root := commands()
	args := strings.Fields(path)
	if config != "" {
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", file)
	}
	root.PersistentPreRunE = cli.ApplySettings(func() []string { return environment })
	find(t, root, path).RunE = func(*cobra.Command, []string) error { return nil }
	root.SetArgs(args)
	if err := root.ExecuteContext(t.Context()); err != nil {
		if code := cli.ExitCode(err); code != cli.ExitUsage {
			t.Errorf("exit code %d for %v", code, err)
		}
		return err.Error()
	}
	return ""
}

func TestAVariableThatIsNoSettingIsRefusedByName(t *testing.T) {
	t.Parallel()
	const own = "DELTA" + "PLANE_" // whole names would be taken for variables of the repository
	for _, row := range []struct {
		what, want  string
		environment []string
	}{
		{"misspelt", "unknown environment variable " + own + "NATS_ULR; did you mean " + own + "NATS_URL?", []string{own + "NATS_ULR=nats://a"}},
		{"like nothing", "unknown environment variable " + own + "X1", []string{own + "X1="}},
		{"two", "unknown environment variable " + own + "A\nunknown environment variable " + own + "B", []string{own + "B=1", own + "A=1"}},
		{"of another command", "", []string{own + "REDIS_URL=redis://a"}},
		{"of a test", "", []string{own + "TEST_ROLE=a", own + "KUBE=1", own + "GOLDEN=write"}},
		{"of others", "", []string{"DELTA_X=1", "PATH=/", "malformed"}},
		{"of a Service in Kubernetes", "", []string{
			own + "QUEUE_SERVICE_HOST=10.0.0.1", own + "QUEUE_SERVICE_PORT=7442", own + "QUEUE_SERVICE_PORT_GRPC=7442", own + "QUEUE_PORT=tcp://10.0.0.1:7442",
			own + "QUEUE_PORT_7442_TCP=tcp://10.0.0.1:7442", own + "QUEUE_PORT_7442_TCP_ADDR=10.0.0.1",
		}},
		{"like one of a Service that is not there", "unknown environment variable " + own + "QUEUE_PORT; did you mean " + own + "QUEUE_URL?", []string{own + "QUEUE_PORT=7442"}},
	} {
		if got := apply(t, "serve indexer", row.environment, ""); got != row.want {
			t.Errorf("a variable %s: %q, want %q", row.what, got, row.want)
		}
	}
}

func TestAKeyThatIsNoSettingIsRefusedWithTheNearestName(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"nats-ulr":            `unknown key "nats-ulr"; did you mean "nats-url"?`,
		"redis-url":           `unknown key "redis-url": it is a setting of "serve queue"`,
		"help-all":            `unknown key "help-all"`,
		"nothing-of-the-like": `unknown key "nothing-of-the-like"`,
	} {
		if got := apply(t, "serve indexer", nil, key+": a\n"); !strings.HasSuffix(got, want) {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	if got := apply(t, "serve indexer", nil, "nats-url: nats://a\n"); got != "" {
		t.Errorf("a good file: %s", got)
	}
}

// serviceLink is a variable that Kubernetes makes of a Service, which documents may name.
var serviceLink = regexp.MustCompile(`_(PORT|SERVICE_HOST|SERVICE_PORT)$`)

var variable = regexp.MustCompile(`\bDELTAPLANE_[A-Z][A-Z0-9_]*[A-Z0-9]\b`)

func TestEveryVariableOfTheRepositoryIsKnown(t *testing.T) {
	t.Parallel()
	known := cli.KnownVariables(commands())
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if name == "testdata" || strings.HasPrefix(name, ".") && name != "." && name != ".." && name != ".ci" {
				return filepath.SkipDir
			}
			return nil
		}
		switch ext := filepath.Ext(name); {
		case ext == ".go", ext == ".yaml", ext == ".sh", ext == ".md" && name != "CHANGELOG.md", name == "Makefile", filepath.Base(filepath.Dir(path)) == ".ci":
		default:
			return nil
		}
		text, err := os.ReadFile(path) //nolint:gosec // a file of this repository
		if err != nil {
			return err
		}
		for _, name := range variable.FindAllString(string(text), -1) {
			if !known(name) && !serviceLink.MatchString(name) {
				t.Errorf("%s: %s is neither a setting nor in ownTests of cmd/deltaplane/internal/cli/known.go", path, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
