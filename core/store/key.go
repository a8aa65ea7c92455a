package store

import (
	"strings"
	"unsafe"
)

// key is the text of a key in one allocation that holds no pointers: a header
// and the bytes behind it. All versions of an object share it. It is made by
// newKey only.
type key struct {
	slash int32 // length of the namespace, -1 when cluster-scoped
	n     uint32
}

const keyHead = int(unsafe.Sizeof(key{}))

func newKey(text string) *key {
	b := make([]byte, max(keyHead+len(text), 2*keyHead)) // below 16 bytes an allocation may not be aligned
	copy(b[keyHead:], text)
	k := (*key)(unsafe.Pointer(unsafe.SliceData(b)))
	k.slash, k.n = int32(strings.IndexByte(text, '/')), uint32(len(text))
	return k
}

// String returns the text, which shares the key's memory.
func (k *key) String() string {
	return unsafe.String((*byte)(unsafe.Add(unsafe.Pointer(k), keyHead)), k.n)
}

func (k *key) namespace() string { return k.String()[:max(k.slash, 0)] }

func (k *key) name() string { return k.String()[k.slash+1:] }

// at is the key's place in key order: by namespace, then by name.
func (k *key) at() (namespace, name string) { return k.namespace(), k.name() }

// place is where a key stands, or would stand, in key order.
type place struct {
	text  string
	slash int32
}

func placeOf(text string) place { return place{text, int32(strings.IndexByte(text, '/'))} }

func (k *key) place() place { return place{k.String(), k.slash} }

// compare orders a key and a place by namespace, then by name.
func (k *key) compare(p place) int {
	if k.slash == p.slash {
		return strings.Compare(k.String(), p.text)
	}
	if c := strings.Compare(k.namespace(), p.text[:max(p.slash, 0)]); c != 0 {
		return c
	}
	return strings.Compare(k.name(), p.text[p.slash+1:])
}

func splitKey(text string) (namespace, name string) {
	if ns, name, ok := strings.Cut(text, "/"); ok {
		return ns, name
	}
	return "", text
}

// Namespace is the part of a key before the slash, "" when there is none.
func Namespace(key string) string {
	ns, _ := splitKey(key)
	return ns
}
