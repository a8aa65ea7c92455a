package stream

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	pullMessages  = 1024
	leastPull     = 64 << 10
	pullExpires   = 30 * time.Second
	pullHeartbeat = 5 * time.Second
	// pullSilence is how long a server may say nothing, not even that there is nothing, before the consumer is taken for lost.
	pullSilence = 12 * time.Second
)

// errConsumerLost: the server has no such consumer any more, or gives it up.
var errConsumerLost = errors.New("stream: consumer lost")

// puller asks for a consumer's messages, never for more bytes than it was told to hold. It speaks the pull protocol itself, so that a message goes
// from the connection's own goroutine to the reader's without a stop between. It is for one goroutine.
type puller struct {
	c       *Conn
	request string // subject of requests
	inbox   string
	sub     *nats.Subscription
	msgs    chan *nats.Msg // never full: the server is not asked for more than fits
	most    int            // bytes asked for at a time

	messages, bytes int  // asked for and not yet there
	whole           bool // nothing was under way when the last request was sent, and nothing has come of it
	narrow          bool // the next record did not fit into what was left: the next request is a whole one
}

func (c *Conn) puller(stream, consumer string, most int) (*puller, error) {
	p := &puller{
		c: c, request: jetstream.DefaultAPIPrefix + "CONSUMER.MSG.NEXT." + stream + "." + consumer, inbox: nats.NewInbox(), most: most,
		msgs: make(chan *nats.Msg, 2*pullMessages+256),
	}
	var err error
	if p.sub, err = c.nc.ChanSubscribe(p.inbox, p.msgs); err != nil {
		return nil, err
	}
	return p, p.ask()
}

func (p *puller) close() { _ = p.sub.Unsubscribe() }

// ask requests what is missing, once half of it is.
func (p *puller) ask() error {
	if p.messages > pullMessages/2 && p.bytes > p.most/2 || p.narrow && p.messages > 0 {
		return nil
	}
	p.whole, p.narrow = p.messages == 0, false
	if p.whole {
		p.bytes = 0 // what the last request had left over
	}
	body, err := json.Marshal(struct {
		Batch     int           `json:"batch"`
		Bytes     int           `json:"max_bytes"`
		Expires   time.Duration `json:"expires"`
		Heartbeat time.Duration `json:"idle_heartbeat"`
	}{pullMessages - p.messages, max(p.most-p.bytes, leastPull), pullExpires, pullHeartbeat})
	if err != nil {
		return err
	}
	p.messages, p.bytes = pullMessages, p.most
	return p.c.nc.PublishRequest(p.request, p.inbox, body)
}

// take accounts for a message; false for one that only says how requests go.
func (p *puller) take(m *nats.Msg) (bool, error) {
	if m.Subject == p.inbox {
		return false, p.status(m)
	}
	p.messages--
	p.bytes -= m.Size()
	p.whole = false
	return true, p.ask()
}

// status reads what the server says of a request.
func (p *puller) status(m *nats.Msg) error {
	code, text := m.Header.Get("Status"), m.Header.Get("Description")
	switch code {
	case "100":
		return nil
	case "408", "409":
		if code == "409" && text != "Batch Completed" && text != "Message Size Exceeds MaxBytes" {
			break
		}
		if text == "Message Size Exceeds MaxBytes" {
			if p.whole {
				p.most *= 2 // a record that another configuration allowed
			}
			p.narrow = true
		}
		p.messages = max(p.messages-left(m, "Nats-Pending-Messages"), 0)
		p.bytes = max(p.bytes-left(m, "Nats-Pending-Bytes"), 0)
		return p.ask()
	}
	return fmt.Errorf("%w: %s %s", errConsumerLost, code, text)
}

func left(m *nats.Msg, header string) int {
	n, _ := strconv.Atoi(m.Header.Get(header))
	return n
}

// place is where a message stands: in the log, in its consumer's deliveries, and when the log took it, by the log's clock.
type place struct {
	sequence, delivery uint64
	at                 time.Time
}

// placeOf reads a message's reply subject: $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<deliveries>.<sequence>.<delivery>.<ns>.<pending>[.<token>].
func placeOf(m *nats.Msg) (place, error) {
	rest, ok := strings.CutPrefix(m.Reply, "$JS.ACK.")
	skip := 3
	if strings.Count(rest, ".") > 6 {
		skip = 5
	}
	for range skip {
		_, rest, _ = strings.Cut(rest, ".")
	}
	sequence, rest, _ := strings.Cut(rest, ".")
	delivery, rest, _ := strings.Cut(rest, ".")
	ns, _, _ := strings.Cut(rest, ".")
	s, err1 := strconv.ParseUint(sequence, 10, 64)
	d, err2 := strconv.ParseUint(delivery, 10, 64)
	t, err3 := strconv.ParseInt(ns, 10, 64)
	if err := errors.Join(err1, err2, err3); !ok || err != nil {
		return place{}, fmt.Errorf("reply subject %q says no place in a log", m.Reply)
	}
	return place{sequence: s, delivery: d, at: time.Unix(0, t)}, nil
}
