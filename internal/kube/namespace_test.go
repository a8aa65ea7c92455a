package kube_test

import (
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/internal/kube"
)

func TestANamespaceIsReadAsFarAsItCanBe(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`{"kind":"Pod","metadata":{"name":"a","namespace":"web","uid":"u"}}`:              "web",
		`{ "spec" : {"metadata":{"namespace":"no"}}, "metadata":{"namespace" : "web" } }`: "web",
		`{"metadata":{"labels":{"namespace":"no"},"namespace":"w\u0065b"}}`:               "web",
		`{"metadata":{"namespace":"web"},"spec":nonsense`:                                 "web",
		`{"metadata":{"name":"a"}}`:                                                       "",
		`{"metadata":{"namespace":""}}`:                                                   "",
		`{"metadata":{"namespace":5}}`:                                                    "",
		`{"metadata":{"namespace":null}}`:                                                 "",
		`{"metadata":{"namespace":"web`:                                                   "",
		`{"spec":nonsense,"metadata":{"namespace":"web"}}`:                                "",
		`{"metadata":[{"namespace":"web"}]}`:                                              "",
		`{"namespace":"web"}`:                                                             "",
		`"text"`:                                                                          "",
		``:                                                                                "",
		strings.Repeat(`{"a":`, 100_000):                                                  "",
	} {
		if got, told := kube.Namespace([]byte(raw)); got != want || told != (want != "") {
			t.Errorf("Namespace(%.80s) = %q, %v, want %q", raw, got, told, want)
		}
	}
}
