package deltaplane

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// An unword is something that comments, names, tests and messages must not say.
type unword struct {
	name string
	// write is what to write instead.
	write string
	form  *regexp.Regexp
	// parts are texts of which every match has one: most files are done with by a plain search.
	parts []string
	// except are the folders and files that still say it. Paths ending in a slash mean everything
	// below.
	except []string
}

// unwords are codes that only a reader of some other document could resolve, and words that only
// this project would use in their sense.
var unwords = []unword{
	{
		name:  "code of a rule",
		write: "what the rule says, or a link to its place in docs/rules.md",
		// R-22, a.2-24, c.13, b-3.
		form: regexp.MustCompile(`\b(RL|[A-Z])-\d{2}\b|\b[a-h]\.\d{1,2}(-\d{1,2})?\b|\bb-\d\b`),
	},
	{
		name:  "test named by a code",
		write: "what happens",
		// TestR22AWatch, TestDesign63AFence, TestRealR19TooMany.
		form: regexp.MustCompile(`\b(Test|Fuzz|Benchmark)(Real)?((RL|[A-Z])\d{1,2}|Design\d{1,2}|A\d{3})+[A-Z]\w*`),
	},
	{
		name:  "section of a document that is not here",
		write: "what it says, or a link into docs/",
		form:  regexp.MustCompile(`\b[Dd]esign,? (section )?\d|\bchecklist\b|\bcontrollers\.md\b`),
		parts: []string{"esign", "checklist", "controllers.md"},
	},
	private("reign", "leadership term"),
	private("chorus", "log deduplicator"),
	private("asker", "deletion resolver"),
	private("taker", "waiter"),
	private("purse", "per-queue credit"),
	private("relieve", "requeue"),
	private("hungry", "has credit"),
	private("hail", "handshake"),
	private("nudge", "wake"),
	private("rouse", "wake"),
	private("poke", "wake"),
	private("complain", "warning, problem, or rate-limited logger"),
	private("patien", "timeout, or extended deadline", "CHANGELOG.md", "internal/stream/lease/lease.go"),
	private("hasty", "non-blocking"),
	private("unfit", "unsuitable"),
	private("afford", "admit"),
	private("hazed", "stale"),
	private("spoil", "invalid, or damaged"),
	private("handicap", "delay"),
	private("letOthers", "yield"),
	private("bury", "write a tombstone, or mark dead"),
	private("buried", "tombstone, or dead"),
	private("shed", "overflow, or drop"),
	private("sink", "consumer"),
	private("wish", "desired resource"),
	private("anew", "recreated, or again"),
	private("whoever", "the caller, or a waiter"),
	phrase("for good", "permanently", "internal/stream/"),
	phrase("in doubt", "unresolved", "internal/stream/"),
	phrase("(is|are|was|were|be|been) told", "notified, received, or reported", "Makefile", "internal/stream/", "services/indexer/", "services/nodeagent/", "services/reflector/"),
}

// private is a word in prose and as a part of a name: "a reign", "endReign".
func private(word, write string, except ...string) unword {
	title := strings.ToUpper(word[:1]) + word[1:]
	return unword{word, write, regexp.MustCompile(`\b` + word + `|` + title), []string{word, title}, except}
}

// phrase is a word or several in prose, given as a regular expression.
func phrase(words, write string, except ...string) unword {
	last := words[strings.LastIndex(words, " ")+1:]
	return unword{words, write, regexp.MustCompile(`\b` + words + `\b`), []string{last}, except}
}

// TestSourcesUseStandardWords reads every source and document. What a folder still says is in the
// lists of exceptions above. To tighten them, clean a folder and remove it from the list: the test
// also fails when an exception is no longer needed. To forbid one more word, add it with the
// folders that the failure names.
func TestSourcesUseStandardWords(t *testing.T) {
	t.Parallel()
	needed := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); foreign(name) || name != ".ci" && hidden(name) {
				return filepath.SkipDir
			}
			return nil
		}
		if !prose(path) {
			return nil
		}
		text, err := os.ReadFile(path) //nolint:gosec // a file of this repository
		if err != nil {
			return err
		}
		for _, u := range unwords {
			at := u.find(text)
			if at == nil {
				continue
			}
			if i := slices.IndexFunc(u.except, func(e string) bool { return below(path, e) }); i >= 0 {
				needed[u.name+" "+u.except[i]] = true
				continue
			}
			line := 1 + strings.Count(string(text[:at[0]]), "\n")
			t.Errorf("%s:%d: %q is a %s: write %s", path, line, text[at[0]:at[1]], u.name, u.write)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range unwords {
		for _, e := range u.except {
			if !needed[u.name+" "+e] {
				t.Errorf("%s says no %s any more: remove it from the exceptions", e, u.name)
			}
		}
	}
}

// find returns where the first match is; nil for none.
func (u unword) find(text []byte) []int {
	if len(u.parts) > 0 && !slices.ContainsFunc(u.parts, func(p string) bool { return bytes.Contains(text, []byte(p)) }) {
		return nil
	}
	return u.form.FindIndex(text)
}

// foreign reports whether what a folder has is data, or written by others.
func foreign(folder string) bool { return folder == "testdata" || folder == "node_modules" }

func hidden(folder string) bool { return folder != "." && strings.HasPrefix(folder, ".") }

// prose reports whether people read and write a file; this one has to name the words.
func prose(path string) bool {
	switch filepath.Ext(path) {
	case ".go", ".proto", ".lua", ".md", ".sh", ".yaml", ".yml", ".py":
		return path != "words_test.go"
	}
	return slices.Contains([]string{"Makefile", "Dockerfile", "run"}, filepath.Base(path))
}

// below reports whether a path is a file, or lies below a folder that ends in a slash.
func below(path, entry string) bool {
	path = filepath.ToSlash(path)
	return path == entry || strings.HasSuffix(entry, "/") && strings.HasPrefix(path, entry)
}

// TestCommentsHaveShortLines holds lines of comments in Go and in the contracts, which people read
// beside code, to 100 columns. A tab is one column. Addresses, directives and generated code may be
// longer.
func TestCommentsHaveShortLines(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); foreign(name) || hidden(name) {
				return filepath.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(path); ext != ".go" && ext != ".proto" || strings.HasSuffix(path, ".pb.go") {
			return nil
		}
		text, err := os.ReadFile(path) //nolint:gosec // a file of this repository
		if err != nil {
			return err
		}
		for i, line := range strings.Split(string(text), "\n") {
			comment := strings.TrimLeft(line, "\t ")
			if !strings.HasPrefix(comment, "// ") || utf8.RuneCountInString(line) <= 100 || strings.Contains(comment, "://") {
				continue
			}
			t.Errorf("%s:%d: a comment of %d columns: say only the why, in lines of 100", path, i+1, utf8.RuneCountInString(line))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
