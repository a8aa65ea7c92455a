package checkpoint

import "sync"

// mostAhead bounds the memory of blocks of which nothing is kept, while they are
// read before their turn: objects may be slower to make than bytes to read.
const mostAhead = 16 << 20

// ahead gives blocks to readers, in their order. Those of which nothing is kept
// get a buffer that is used again, and wait when the buffers take mostAhead; one
// that is longer than that has to be the only one.
type ahead struct {
	mu      sync.Mutex // guards the rest
	free    sync.Cond
	list    []*block // not taken yet
	spare   [][]byte
	inUse   int // buffers
	took    int // bytes of buffers, of those in spare too
	stopped bool
}

func newAhead(list []*block) *ahead {
	a := &ahead{list: list}
	a.free.L = &a.mu
	return a
}

// take returns the next block to be filled, nil when there is none. Since blocks
// are taken in their order, the one that the decoder waits for never waits for
// memory that later ones hold.
func (a *ahead) take() *block {
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.stopped && len(a.list) > 0 {
		if b := a.list[0]; b.kind == kindPayloads || a.admit(b) {
			a.list = a.list[1:]
			return b
		}
		a.free.Wait()
	}
	return nil
}

// admit finds memory for a block. mu is held.
func (a *ahead) admit(b *block) bool {
	for n := len(a.spare); n > 0; n = len(a.spare) {
		buf := a.spare[n-1]
		a.spare = a.spare[:n-1]
		if cap(buf) >= b.size {
			b.payload = buf
			a.inUse++
			return true
		}
		a.took -= cap(buf)
	}
	if a.inUse > 0 && a.took+b.size > mostAhead {
		return false
	}
	a.inUse, a.took = a.inUse+1, a.took+b.size // its reader makes it
	return true
}

// give gives back the buffer of a block that was decoded.
func (a *ahead) give(buf []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inUse--
	a.spare = append(a.spare, buf)
	a.free.Broadcast()
}

// stop makes take return nil.
func (a *ahead) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
	a.free.Broadcast()
}
