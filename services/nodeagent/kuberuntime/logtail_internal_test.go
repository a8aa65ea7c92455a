package kuberuntime

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTheEndOfALogInTheCRIsFormat(t *testing.T) {
	t.Parallel()
	const at = "2026-11-21T10:00:00.123456789Z "
	long := strings.Repeat("x", 3000)
	for _, tc := range []struct {
		name, raw, want string
		lines           int
	}{
		{name: "nothing"},
		{name: "both streams", raw: at + "stdout F one\n" + at + "stderr F two\n", want: "one\ntwo\n"},
		{name: "a line in parts", raw: at + "stdout P one, \n" + at + "stdout F two\n", want: "one, two\n"},
		{name: "tags", raw: at + "stdout F:tag one\n", want: "one\n"},
		{name: "no newline at the end", raw: at + "stdout F one", want: "one\n"},
		{name: "empty lines of text", raw: at + "stdout F \n" + at + "stdout F one\n", want: "\none\n"},
		{name: "cut at its beginning", raw: "56789Z stdout F zero\n" + at + "stdout F one\n", want: "one\n"},
		{name: "what is no log line", raw: "hello\n\n" + at + "stdin F x\n" + at + "stdout X x\n" + at + "stdout F one\n", want: "one\n"},
		{name: "the last lines", raw: at + "stdout F one\n" + at + "stdout F two\n" + at + "stdout F three\n", lines: 2, want: "two\nthree\n"},
		{name: "the last bytes", raw: at + "stdout F " + long + "\n", want: long[:maxLogMessage-1] + "\n"},
		{name: "not UTF-8", raw: at + "stdout F a\xffb\n", want: "a\uFFFDb\n"},
		{name: "cut between runes", raw: at + "stdout F é" + long[:maxLogMessage-2] + "\n", want: long[:maxLogMessage-2] + "\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			lines := tc.lines
			if lines == 0 {
				lines = maxLogLines
			}
			if got := logTail([]byte(tc.raw), lines, maxLogMessage); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func FuzzLogTail(f *testing.F) {
	f.Add([]byte("2026-11-21T10:00:00.1Z stdout F one\n2026-11-21T10:00:00.1Z stderr P:x two\n"), 80, 2048)
	f.Add([]byte("\n\n \nx"), 1, 1)
	f.Fuzz(func(t *testing.T, raw []byte, lines, limit int) {
		lines, limit = lines&127, limit&4095
		got := logTail(raw, lines, limit)
		if len(got) > limit || !utf8.ValidString(got) {
			t.Fatalf("%q: longer than %d, or not UTF-8", got, limit)
		}
		if lines == 0 && got != "" {
			t.Fatalf("no lines make %q", got)
		}
	})
}

func TestImageReferences(t *testing.T) {
	t.Parallel()
	const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for image, want := range map[string]string{
		"app": "app:latest", "app:1": "app:1", "lib/app": "lib/app:latest", "registry.example:5000/lib/app": "registry.example:5000/lib/app:latest",
		"registry.example/lib/app:v1.2-3_4": "registry.example/lib/app:v1.2-3_4", "app" + digest: "app" + digest, "app:1" + digest: "app:1" + digest,
		"[::1]:5000/app:1": "[::1]:5000/app:1", "localhost/a__b/c--d.e": "localhost/a__b/c--d.e:latest",
		"": "", "UPPER": "", "app:": "", "app@sha256:12": "", "-app": "", "app//b": "", "a b": "", "app:1:2": "", "http://x/app": "", "app\n": "",
		"Registry.Example/app": "Registry.Example/app:latest",
	} {
		got, err := normal(image)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", image, got, err, want)
		}
	}
}

func FuzzImageReference(f *testing.F) {
	f.Add("registry.example:5000/lib/app:1")
	f.Fuzz(func(t *testing.T, image string) {
		got, err := normal(image)
		if err != nil {
			return
		}
		if again, err := normal(got); err != nil || again != got {
			t.Fatalf("%q becomes %q becomes %q, %v", image, got, again, err)
		}
	})
}
