package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/seal"
)

// HeaderRoom is what a record's headers may take beside its payload; the server's own limit for
// headers is 64 KiB.
const HeaderRoom = 64 << 10

// Tail is the state of a log.
type Tail struct {
	// First and Last are the log's sequences; Last is 0 for a log nothing was ever written to.
	First, Last uint64
	// Messages is how many records the log holds.
	Messages uint64
	// Bytes is how much they take, headers included.
	Bytes uint64
	// Epoch, Term and Start are those of the last term record; 0 without one. Fence is the highest
	// term of a fence.
	Epoch, Term, Start, Fence uint64
	// Needs, Writer and Build are those of the last term record; see [delta.Record].
	Needs         uint64
	Writer, Build string
	// Source is that of the last term record; see [delta.Record].
	Source string
	// Replicas is how many servers keep the log.
	Replicas int
	// Created is when the stream was made; a stream made again is another log.
	Created time.Time
	// Now is the log's clock when it answered.
	Now time.Time

	Largest         int       // bytes of a record, as the log is configured
	Asked, Answered time.Time // by this process's clock
}

// Readable is nil unless the leader has announced records that this build cannot read; then it
// wraps a [delta.UnknownError]. A build that does not read a log does not write it either.
func (t Tail) Readable() error {
	if err := delta.Needs(t.Needs); err != nil {
		return t.Newer(0, err)
	}
	return nil
}

// Newer is the error of a reader before a record that it cannot read.
func (t Tail) Newer(sequence uint64, err error) *delta.NewerError {
	unknown, _ := errors.AsType[*delta.UnknownError](err)
	return &delta.NewerError{Sequence: sequence, Unknown: unknown, Writer: t.Writer, Build: t.Build}
}

// Ahead is how far the log's clock is at least ahead of this process's, or behind it. Two that
// agree as far as an answer can tell, agree: a guess would be wrong by the time that the answer
// took.
func (t Tail) Ahead() time.Duration {
	if least := t.Now.Sub(t.Answered); least > 0 {
		return least
	}
	return min(t.Now.Sub(t.Asked), 0)
}

// MaxPayload is the largest payload in bytes that fits into a record, by our configuration and,
// once it was reached, the server's.
func (c *Conn) MaxPayload() int {
	most := c.Config.MaxPayload
	if servers := int(c.NATS.MaxPayload()); servers > 0 { // 0 before it was reached
		most = min(most, servers)
	}
	return most - HeaderRoom - seal.Overhead
}

// Tail reads the state of col's log from the stream's leader; [ErrNoLog] when there is none.
func (c *Conn) Tail(ctx context.Context, col delta.Collection) (Tail, error) {
	asked := time.Now()
	info, err := c.Info(ctx, col)
	if err != nil {
		return Tail{}, err
	}
	t := Tail{
		First: info.State.FirstSeq, Last: info.State.LastSeq, Messages: info.State.Msgs, Bytes: info.State.Bytes, Replicas: info.Config.Replicas,
		Created: info.Created, Now: info.TimeStamp, Largest: int(info.Config.MaxMsgSize), Asked: asked, Answered: time.Now(),
	}
	term, err := c.Control(ctx, col, delta.KindTerm)
	if err != nil {
		return Tail{}, err
	}
	t.Epoch, t.Term, t.Start = term.Epoch, term.Term, term.Start
	t.Needs, t.Writer, t.Build, t.Source = term.Needs, term.Writer, term.Build, term.Source
	fence, err := c.Control(ctx, col, delta.KindFence)
	if err != nil {
		return Tail{}, err
	}
	t.Fence = fence.Term
	return t, nil
}

// Remove deletes the collection's log. Readers get a reset when it is made again.
func (c *Conn) Remove(ctx context.Context, col delta.Collection) error {
	err := c.JetStream.DeleteStream(ctx, col.StreamName())
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("remove the log of %s: %w", col, Named(err))
	}
	return nil
}

// StreamConfig is how the stream of a collection is to be configured.
func (c *Conn) StreamConfig(col delta.Collection) jetstream.StreamConfig {
	storage := jetstream.FileStorage
	if c.Config.Memory {
		storage = jetstream.MemoryStorage
	}
	return jetstream.StreamConfig{
		Name:              col.StreamName(),
		Description:       "delta log of " + col.String(),
		Subjects:          col.Subjects(),
		Retention:         jetstream.LimitsPolicy,
		Discard:           jetstream.DiscardOld,
		MaxMsgsPerSubject: 1,
		MaxMsgSize:        int32(c.Config.MaxPayload),
		Storage:           storage,
		Replicas:          c.Config.Replicas,
		AllowDirect:       true,
		AllowMsgTTL:       true,
		DenyDelete:        true,
		Metadata:          map[string]string{metaCollection: col.String(), "deltaplane-schema": "1"},
	}
}

// The server's errors while the files of a stream of the same name are still being removed, and
// when another stream has our subjects.
const (
	storeFailed     jetstream.ErrorCode = 10049
	subjectsOverlap jetstream.ErrorCode = 10065
)

// create makes a stream, also one that was removed a moment ago: the server may still be at its
// files, and may take them for the new stream's.
func (c *Conn) create(ctx context.Context, want jetstream.StreamConfig) error {
	for try := 0; ; try++ {
		made, err := c.JetStream.CreateStream(ctx, want)
		if err == nil && try < 20 && inherited(made.CachedInfo()) {
			c.Config.Log.Warn("the server found files of a log that was removed", slog.String("stream", want.Name))
			err = c.JetStream.DeleteStream(ctx, want.Name)
			if err == nil || errors.Is(err, jetstream.ErrStreamNotFound) {
				err = &jetstream.APIError{ErrorCode: storeFailed}
			}
		}
		refused, ok := errors.AsType[*jetstream.APIError](err)
		if ok && refused.ErrorCode == subjectsOverlap {
			return fmt.Errorf("%w: %w", ErrForeign, err)
		}
		if !ok || refused.ErrorCode != storeFailed || try == 20 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// inherited reports whether a stream holds records that are older than itself.
func inherited(info *jetstream.StreamInfo) bool {
	return info.State.Msgs > 0 && info.State.FirstTime.Before(info.Created)
}

// Ensure makes the stream of col, or checks that the one that exists is ours.
func (c *Conn) Ensure(ctx context.Context, col delta.Collection) error {
	want := c.StreamConfig(col)
	info, err := c.Info(ctx, col)
	if errors.Is(err, ErrNoLog) {
		err = c.create(ctx, want)
		if err == nil {
			return nil
		}
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return fmt.Errorf("make the log of %s: %w", col, Named(err))
		}
		info, err = c.Info(ctx, col)
	}
	if err != nil {
		return err
	}
	got := info.Config
	if err := Ours(got, want); err != nil {
		return err
	}
	if int(got.MaxMsgSize) != c.Config.MaxPayload || got.Replicas != c.Config.Replicas {
		got.MaxMsgSize, got.Replicas = want.MaxMsgSize, want.Replicas
		if _, err := c.JetStream.UpdateStream(ctx, got); err != nil {
			c.Config.Log.Warn("log keeps its old limits", slog.String("collection", col.String()), slog.String("error", err.Error()))
		}
	}
	return nil
}

// Ours checks what a log cannot do without.
func Ours(got, want jetstream.StreamConfig) error {
	var faults []error
	if got.Metadata[metaCollection] != want.Metadata[metaCollection] {
		faults = append(faults, fmt.Errorf("metadata names the collection %q", got.Metadata[metaCollection]))
	}
	if !slices.Equal(got.Subjects, want.Subjects) {
		faults = append(faults, fmt.Errorf("subjects are %q", got.Subjects))
	}
	if got.MaxMsgsPerSubject != 1 {
		faults = append(faults, fmt.Errorf("max messages per subject is %d", got.MaxMsgsPerSubject))
	}
	if !got.AllowMsgTTL {
		faults = append(faults, errors.New("message TTLs are not allowed"))
	}
	if got.Retention != jetstream.LimitsPolicy || got.MaxAge != 0 || got.MaxMsgs > 0 || got.MaxBytes > 0 {
		faults = append(faults, errors.New("it limits age, messages or bytes"))
	}
	if len(faults) > 0 {
		return fmt.Errorf("%w: stream %s: %w", ErrForeign, want.Name, errors.Join(faults...))
	}
	return nil
}

// Info asks the stream's leader, so that a replica that lags cannot answer.
func (c *Conn) Info(ctx context.Context, col delta.Collection) (*jetstream.StreamInfo, error) {
	s, err := c.JetStream.Stream(ctx, col.StreamName())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("%w: %s", ErrNoLog, col)
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of the log of %s: %w", col, Named(err))
	}
	return s.CachedInfo(), nil
}

// Control reads the last control record of a kind from the stream's leader; the zero record when
// there is none.
func (c *Conn) Control(ctx context.Context, col delta.Collection, kind delta.Kind) (delta.Record, error) {
	msg, err := c.Message(ctx, col, struct {
		LastFor string `json:"last_by_subj"`
	}{col.ControlSubject(kind)})
	if err != nil || msg == nil {
		return delta.Record{}, err
	}
	return c.Decode(msg.Subject, msg.Header, msg.Data, msg.Sequence)
}

// Message asks the stream's leader for one message; nil when there is none. The client's own call
// may be answered by any replica.
func (c *Conn) Message(ctx context.Context, col delta.Collection, query any) (*jetstream.RawStreamMsg, error) {
	body, err := json.Marshal(query)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	reply, err := c.NATS.RequestWithContext(ctx, jetstream.DefaultAPIPrefix+"STREAM.MSG.GET."+col.StreamName(), body)
	if err != nil {
		return nil, fmt.Errorf("read the log of %s: %w", col, Named(err))
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Subject string `json:"subject"`
			Seq     uint64 `json:"seq"`
			Header  []byte `json:"hdrs"`
			Data    []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return nil, fmt.Errorf("read the log of %s: %w", col, err)
	}
	switch {
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, nil
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeStreamNotFound:
		return nil, fmt.Errorf("%w: %s", ErrNoLog, col)
	case answer.Error != nil:
		return nil, fmt.Errorf("read the log of %s: %w", col, Named(answer.Error))
	case answer.Message == nil:
		return nil, nil
	}
	m := answer.Message
	h, err := nats.DecodeHeadersMsg(m.Header)
	if err != nil {
		return nil, fmt.Errorf("read the log of %s: sequence %d: %w", col, m.Seq, err)
	}
	return &jetstream.RawStreamMsg{Subject: m.Subject, Sequence: m.Seq, Header: h, Data: m.Data}, nil
}
