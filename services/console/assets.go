package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
)

//go:embed all:assets
var embedded embed.FS

// page is one file of the pages, as it is sent.
type page struct {
	kind        string
	hash        string
	plain, gzip []byte // gzip is nil where it is not smaller
}

// pages serves the files of the pages from memory.
type pages map[string]*page // by path

const index = "/index.html"

// newPages reads the files. In index.html, names of others in quotes are followed by their hashes,
// so that browsers keep those files permanently.
func newPages(files fs.FS) (pages, error) {
	p := pages{}
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasPrefix(path.Base(name), ".") {
			return err
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		p["/"+name] = &page{plain: content, hash: hashOf(content), kind: kindOf(name)}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("console: pages: %w", err)
	}
	first := p[index]
	if first == nil {
		return nil, fmt.Errorf("console: pages: there is no %s", index)
	}
	for name, other := range p {
		for _, as := range []string{name, strings.TrimPrefix(name, "/"), "." + name} {
			first.plain = bytes.ReplaceAll(first.plain, []byte(`"`+as+`"`), []byte(`"`+name+"?v="+other.hash+`"`))
		}
	}
	first.hash = hashOf(first.plain)
	for _, one := range p {
		one.compress()
	}
	return p, nil
}

func hashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

func kindOf(name string) string {
	switch kind := mime.TypeByExtension(path.Ext(name)); {
	case path.Ext(name) == ".js": // whatever the machine's own table says
		return "text/javascript; charset=utf-8"
	case kind == "":
		return "application/octet-stream"
	default:
		return kind
	}
}

func (p *page) compress() {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is one
	_, _ = z.Write(p.plain)                               // to memory
	_ = z.Close()
	if b.Len() < len(p.plain) {
		p.gzip = b.Bytes()
	}
}

// ServeHTTP implements http.Handler. A path without a file extension is one of the pages' own,
// which index.html shows.
func (p pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "the method is not allowed", http.StatusMethodNotAllowed)
		return
	}
	one := p[r.URL.Path]
	if one == nil && path.Ext(r.URL.Path) == "" {
		one = p[index]
	}
	if one == nil {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	content, tag := one.plain, `"`+one.hash+`"`
	h.Set("Vary", "Accept-Encoding")
	if one.gzip != nil && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		content, tag = one.gzip, `"`+one.hash+`-gzip"`
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Type", one.kind)
	h.Set("ETag", tag)
	h.Set("Cache-Control", "no-cache")
	if r.URL.Query().Get("v") == one.hash {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	if strings.Contains(r.Header.Get("If-None-Match"), tag) {
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", fmt.Sprint(len(content)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(content) // a reader that has gone needs no more
	}
}
