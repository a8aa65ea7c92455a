package indexer

import (
	"fmt"
	"strconv"
	"sync"
)

// quota is a number of things that calls hold and give back: so many all
// together, and so many each client. It is safe for concurrent use.
type quota struct {
	all, each limit

	mu   sync.Mutex
	held int
	by   map[string]int // by client; none are left out
}

// limit is the most of something, by the name of its setting; zero is no bound.
type limit struct {
	name string
	most int
}

func (l *limit) passed(n int) bool { return l.most > 0 && n > l.most }

// take takes n for a client, or nothing and names the limit that it would pass.
// What is nobody's, for client "", counts for all alone.
func (q *quota) take(client string, n int) *limit {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.all.passed(q.held + n):
		return &q.all
	case client != "" && q.each.passed(q.by[client]+n):
		return &q.each
	}
	q.held += n
	if client != "" {
		if q.by == nil {
			q.by = map[string]int{}
		}
		q.by[client] += n
	}
	return nil
}

// give gives back what was taken.
func (q *quota) give(client string, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.held -= n
	if client == "" {
		return
	}
	if q.by[client] -= n; q.by[client] == 0 {
		delete(q.by, client)
	}
}

// used is how much is held.
func (q *quota) used() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.held
}

// refuse makes the error of a limit that was met.
func (s *Service) refuse(is error, l *limit, what string) error {
	s.metrics.limited.WithLabelValues(l.name).Inc()
	return newFault(is, fmt.Sprintf("%s: %s is %d", what, l.name, l.most), "limit", strconv.Itoa(l.most), "limit_name", l.name)
}
