package stream_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/seal"
	"github.com/deltaplane/deltaplane/internal/seal/sealtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// encrypting is a connection that encrypts pods by the keys of a file.
func encrypting(t *testing.T, url string, lines ...string) (c *stream.Conn, keyFile string) {
	t.Helper()
	keys, path := sealtest.Open(t, lines...)
	return connect(t, url, func(cfg *stream.Config) {
		cfg.Encryption = seal.Policy{Keys: keys, Resources: []string{"pods"}}
	}), path
}

// raw is the message of a pod as NATS has it.
func raw(t *testing.T, url, name string) *jetstream.RawStreamMsg {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	log, err := js.Stream(t.Context(), pods.StreamName())
	if err != nil {
		t.Fatal(err)
	}
	r := pod(name, 1)
	r.Collection = pods
	m, err := log.GetLastMsgForSubject(t.Context(), r.Subject())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *mirror) object(key delta.Key) delta.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[key]
}

func TestAnEncryptedPayloadIsReadByWhoHasTheKeyAndByNobodyInNATS(t *testing.T) {
	t.Parallel()
	url, line := embeddedtest.NATS(t).URL(), sealtest.Line()
	c, _ := encrypting(t, url, line)
	w := write(t, c, stream.WriterConfig{Term: 1})
	want := pod("a", 1)
	put(t, w, want, synced(1))
	m := raw(t, url, "a")
	if bytes.Contains(m.Data, []byte("kind")) || m.Header.Get(delta.HeaderEncoding) != delta.EncodingSealed || m.Header.Get(delta.HeaderSealed) != c.Key(pods) {
		t.Errorf("NATS has %q with %v", m.Data, m.Header)
	}
	for _, form := range []stream.ReadConfig{{}, {HeadersOnly: true}} {
		got := follow(t, c, form)
		got.until(t, "the pod", func() bool { return len(got.live()) == 1 })
		r := got.object("default/a")
		if form.HeadersOnly {
			if r.Payload != nil || r.Encoding != delta.EncodingJSON || r.Sealed != c.Key(pods) {
				t.Errorf("a reader of headers has %q in %q by %q", r.Payload, r.Encoding, r.Sealed)
			}
			continue
		}
		if !bytes.Equal(r.Payload, want.Payload) || r.Encoding != delta.EncodingJSON || !r.Intact() || r.Hash != want.Hash {
			t.Errorf("the reader has %q in %q, intact %v", r.Payload, r.Encoding, r.Intact())
		}
	}
	// A reader that encrypts nothing itself decrypts what others have encrypted.
	keys, _ := sealtest.Open(t, line)
	other := follow(t, connect(t, url, func(cfg *stream.Config) { cfg.Encryption.Keys = keys }), stream.ReadConfig{})
	other.until(t, "the pod", func() bool { return len(other.live()) == 1 })
	if r := other.object("default/a"); !bytes.Equal(r.Payload, want.Payload) {
		t.Errorf("another reader has %q", r.Payload)
	}
}

func TestAReaderWithoutTheKeyStandsStillUntilItHasIt(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	old, next := sealtest.Line(), sealtest.Line()
	c, file := encrypting(t, url, old)
	w := write(t, c, stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1), synced(1))
	lagging, laggingFile := encrypting(t, url, old)
	m := follow(t, lagging, stream.ReadConfig{})
	m.until(t, "the first pod", func() bool { return m.revision().RV == "1" })
	var stood *delta.NewerError
	seen := make(chan struct{}, 1)
	blind := connect(t, url, nil)
	go func() {
		_ = blind.Read(t.Context(), pods, stream.ReadConfig{}, func(_ context.Context, b delta.Batch) error {
			if b.Newer != nil {
				stood = b.Newer
				seen <- struct{}{}
				return errors.New("seen")
			}
			return nil
		})
	}()
	<-seen
	if stood.Unknown.Part != delta.PartKey || stood.Unknown.Value != c.Key(pods) {
		t.Errorf("a reader without keys stands before %v", stood)
	}
	was := c.Key(pods)
	sealtest.Write(t, file, next, old)
	m.until(t, "the new key", func() bool { return c.Key(pods) != was })
	put(t, w, pod("b", 2))
	reread := follow(t, c, stream.ReadConfig{})
	reread.until(t, "both pods, each by its key", func() bool { return len(reread.live()) == 2 })
	if m.live()["default/b"] != "" {
		t.Error("a reader has what it cannot decrypt")
	}
	sealtest.Write(t, laggingFile, old, next)
	m.until(t, "the second pod", func() bool { return m.revision().RV == "2" })
}

func TestAnEncryptedPayloadThatIsDamagedOrMovedToAnotherKeyIsNotIntact(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c, _ := encrypting(t, url, sealtest.Line())
	w := write(t, c, stream.WriterConfig{Term: 1})
	second := pod("b", 1)
	second.UID = pod("a", 1).UID
	put(t, w, pod("a", 1), second, synced(1))
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	a, b := raw(t, url, "a"), raw(t, url, "b")
	flipped := bytes.Clone(a.Data)
	flipped[len(flipped)-1] ^= 1
	for _, forged := range []nats.Msg{
		{Subject: b.Subject, Header: b.Header, Data: a.Data},
		{Subject: a.Subject, Header: a.Header, Data: flipped},
	} {
		for _, own := range []string{jetstream.ExpectedLastSeqHeader, jetstream.ExpectedStreamHeader} {
			forged.Header.Del(own)
		}
		if _, err := nc.RequestMsg(&forged, 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	m := follow(t, c, stream.ReadConfig{})
	m.until(t, "both pods", func() bool { return len(m.live()) == 2 && m.revision().RV == "1" })
	for _, key := range []delta.Key{"default/a", "default/b"} {
		if r := m.object(key); r.Intact() || r.Payload != nil {
			t.Errorf("%s is %q and intact", key, r.Payload)
		}
	}
}

func TestAHashOfAnEncryptedPayloadTellsNothingWithoutTheKeyAndChangesWithIt(t *testing.T) {
	t.Parallel()
	url, line := embeddedtest.NATS(t).URL(), sealtest.Line()
	c, _ := encrypting(t, url, line)
	same, _ := encrypting(t, url, line)
	other, _ := encrypting(t, url, sealtest.Line())
	hash := delta.Hash([]byte("{}"))
	if c.Hash(pods, hash) == hash || c.Hash(pods, hash) != same.Hash(pods, hash) || c.Hash(pods, hash) == other.Hash(pods, hash) {
		t.Errorf("hash %x: %x, %x with the same key, %x with another", hash, c.Hash(pods, hash), same.Hash(pods, hash), other.Hash(pods, hash))
	}
	nodes := delta.Collection{Cluster: "dev", Version: "v1", Resource: "nodes"}
	if c.Hash(nodes, hash) != hash || c.Key(nodes) != "" || c.Encrypts(nodes) {
		t.Error("nodes are encrypted")
	}
}
