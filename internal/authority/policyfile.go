package authority

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/access"
)

const (
	// policyPolled is how often the policy file is looked at.
	policyPolled = 400 * time.Millisecond
	maxPolicy    = 4 << 20
)

// policyFile is the policy, and the file it is read from. Without a file it grants nothing. One
// that cannot be read or understood leaves the last good policy in force, which is a fault for
// operators; one that is deleted grants nothing.
type policyFile struct {
	path    string
	log     *slog.Logger
	changed func()

	mu      sync.Mutex // guards the rest
	policy  *access.Policy
	content [sha256.Size]byte
	fault   error
}

func openPolicy(path string, log *slog.Logger, changed func()) (*policyFile, error) {
	p := &policyFile{path: path, log: log, changed: changed, policy: &access.Policy{}}
	if path == "" {
		return p, nil
	}
	p.refresh()
	return p, p.fault
}

// get is the policy in force.
func (p *policyFile) get() *access.Policy {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.policy
}

func (p *policyFile) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault
}

func (p *policyFile) follow(ctx context.Context) {
	if p.path == "" {
		return
	}
	tick := time.NewTicker(policyPolled)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if p.refresh() {
				p.changed()
			}
		}
	}
}

// refresh looks at the file, and reports whether another policy is in force.
func (p *policyFile) refresh() bool {
	data, err := readPolicy(p.path)
	content := sha256.Sum256(data)
	p.mu.Lock()
	defer p.mu.Unlock()
	gone := errors.Is(err, fs.ErrNotExist)
	if err == nil && content == p.content || gone && errors.Is(p.fault, fs.ErrNotExist) {
		return false
	}
	var policy *access.Policy
	if err == nil {
		policy, err = ParsePolicy(data)
	}
	if err == nil {
		if p.fault != nil {
			p.log.Info("policy file is good again", slog.String("path", p.path))
		}
		p.policy, p.content, p.fault = policy, content, nil
		return true
	}
	err = fmt.Errorf("authority: policy file %s: %w", p.path, err)
	if p.fault == nil || p.fault.Error() != err.Error() {
		p.log.Error("policy file cannot be used", slog.String("path", p.path), slog.Any("error", err))
	}
	p.content, p.fault = content, err
	if gone {
		p.policy = &access.Policy{}
	}
	return gone
}

func readPolicy(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxPolicy {
		return nil, fmt.Errorf("has %d bytes, at most %d", info.Size(), maxPolicy)
	}
	return os.ReadFile(path)
}
