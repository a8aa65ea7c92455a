package extract

import "cmp"

// cache remembers values by the bytes they were made from, in bounded memory:
// what was not used while a generation filled up is forgotten when the next one
// has. The zero value is ready to use.
type cache[V any] struct {
	young, old map[string]V
	bytes      int // of the keys in young
	most       int // entries of a generation; zero is cacheEntries
}

// Bounds of one generation.
const (
	cacheEntries = 1 << 15
	cacheBytes   = 8 << 20
)

func (c *cache[V]) get(key []byte) (V, bool) {
	if v, ok := c.young[string(key)]; ok {
		return v, true
	}
	v, ok := c.old[string(key)]
	if ok {
		c.put(key, v)
	}
	return v, ok
}

func (c *cache[V]) put(key []byte, v V) {
	if c.young == nil || len(c.young) >= cmp.Or(c.most, cacheEntries) || c.bytes+len(key) > cacheBytes {
		c.young, c.old, c.bytes = make(map[string]V, len(c.young)), c.young, 0 // as many will come
	}
	c.young[string(key)] = v
	c.bytes += len(key)
}
