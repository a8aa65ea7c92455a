package stream

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	pullMessages = 1024
	leastPull    = 64 << 10
	// pullExpires is how long a request waits at the server, which answers it then if nothing has come. About one takeover in several hundred found
	// the server with a record to send and a request to send it for, and silent until that ended: so they are short, and no heartbeats are
	// needed beside them.
	pullExpires = 2 * time.Second
	// pullSilence is how long a server that answers may send nothing, not even the end of a
	// request, before the consumer is taken for lost.
	pullSilence = 12 * time.Second
)

// errConsumerLost: the server has no such consumer any more, or gives it up.
var errConsumerLost = errors.New("stream: consumer lost")

// message is a record as it came, or what the server says of a request.
type message struct {
	subject string
	size    int // as the server counts it
	at      place
	header  string      // as it was sent; empty when the library has read it
	fields  nats.Header // when the library has read it, or of a status
	data    []byte      // part of chunk, if there is one
	chunk   *chunk
	status  bool
}

// demand is what a puller asks for at a time.
type demand struct {
	messages, bytes int
	expires         time.Duration
}

// puller asks for a consumer's messages, never for more bytes than it was told to hold. It speaks the pull protocol itself, so that a message goes
// from the connection's own goroutine to the reader's without a stop between. It is for one goroutine.
type puller struct {
	c        *Conn
	request  string // subject of requests
	consumer string
	inbox    string
	sub      *nats.Subscription
	sink     *sink
	came     []message      // taken from the sink
	next     int            // the first of them that is not gathered
	msgs     chan *nats.Msg // what the tap left to the library; never full: the server is not asked for more than fits
	demand   demand
	most     int // demand.bytes, or more once a record was larger

	// messages and bytes are asked for and not yet there. A request whose bytes were used up to the last one is over, and the server
	// says nothing of the messages that it was also for: there may be fewer under way than messages, and none when there are no bytes. What a
	// request has left over when its last message comes is said behind that: until then its bytes count, though there may be no messages.
	messages, bytes int
	whole           bool // nothing was under way when the last request was sent, and nothing has come of it
	again           bool // it was asked anew, and the counts may be too low
	narrow          bool // the next record did not fit into what was left: the next request is a whole one
}

func (c *Conn) puller(stream, consumer string, d demand) (*puller, error) {
	p := &puller{
		c: c, request: jetstream.DefaultAPIPrefix + "CONSUMER.MSG.NEXT." + stream + "." + consumer, consumer: consumer, inbox: nats.NewInbox(), demand: d, most: d.bytes,
		sink: newSink(), msgs: make(chan *nats.Msg, 2*d.messages+256),
	}
	var err error
	if p.sub, err = c.nc.ChanSubscribe(p.inbox, p.msgs); err != nil {
		return nil, err
	}
	c.taps.set(p.sink, p.consumer, p.inbox)
	return p, p.ask()
}

func (p *puller) close() {
	_ = p.sub.Unsubscribe()
	p.c.taps.set(nil, p.consumer, p.inbox)
	p.sink.close()
}

// received is a message that the library has read.
func (p *puller) received(m *nats.Msg) (message, error) {
	if m.Subject == p.inbox {
		return message{status: true, fields: m.Header}, nil
	}
	at, err := placeOf(m.Reply)
	return message{subject: m.Subject, size: m.Size(), at: at, fields: m.Header, data: m.Data}, err
}

// push adds a message that the library has read to what is to be gathered.
func (p *puller) push(m *nats.Msg) error {
	x, err := p.received(m)
	if err == nil {
		p.came = append(p.came, x)
	}
	return err
}

// gather takes what has come, up to a batch. If there may be more, the sink wakes again.
func (p *puller) gather(batch []message, most int) ([]message, error) {
	for {
		if p.next == len(p.came) {
			p.came, p.next = p.sink.take(p.came), 0
		}
		if p.next == len(p.came) {
			select {
			case m := <-p.msgs:
				if err := p.push(m); err != nil {
					return batch, err
				}
			default:
				return batch, nil
			}
		}
		m := &p.came[p.next]
		p.next++
		record, err := p.take(m)
		if err != nil {
			return batch, err
		}
		if record {
			batch = append(batch, *m)
		}
		if len(batch) == most {
			p.sink.rouse()
			return batch, nil
		}
	}
}

// late is how long the server may say nothing before nothing that was asked for can be under way, unless the server is slow: twice as long as it
// keeps a request.
func (p *puller) late() time.Duration { return 2 * p.demand.expires }

// waiting reports whether something has come that is not gathered.
func (p *puller) waiting() bool { return len(p.sink.wake) > 0 || len(p.msgs) > 0 }

// anew asks as if nothing were under way. If something is, there is twice as much now, and the counts are too low from then on: so it is for once.
func (p *puller) anew() error {
	p.messages, p.bytes, p.narrow = 0, 0, false
	err := p.ask()
	p.whole, p.again = false, true // what is refused next may be an earlier request
	return err
}

// ask requests what is missing, once half of it is.
func (p *puller) ask() error {
	whole := p.bytes <= 0
	if whole {
		p.messages, p.bytes = 0, 0
	} else if p.narrow || p.messages > p.demand.messages/2 && p.bytes > p.most/2 {
		return nil
	}
	p.whole, p.narrow = whole, false
	messages, size := max(p.demand.messages-p.messages, 1), max(p.most-p.bytes, leastPull)
	body, err := json.Marshal(struct {
		Batch   int           `json:"batch"`
		Bytes   int           `json:"max_bytes"`
		Expires time.Duration `json:"expires"`
	}{messages, size, p.demand.expires})
	if err != nil {
		return err
	}
	p.messages, p.bytes = p.messages+messages, p.bytes+size
	return p.c.nc.PublishRequest(p.request, p.inbox, body)
}

// take accounts for a message; false for one that only says how requests go.
func (p *puller) take(m *message) (bool, error) {
	if m.status {
		return false, p.status(m.fields)
	}
	p.messages--
	p.bytes -= m.size
	p.whole = false
	return true, p.ask()
}

// status reads what the server says of a request.
func (p *puller) status(h nats.Header) error {
	code, text := h.Get("Status"), h.Get("Description")
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
		p.messages = max(p.messages-left(h, "Nats-Pending-Messages"), 0)
		p.bytes = max(p.bytes-left(h, "Nats-Pending-Bytes"), 0)
		return p.ask()
	}
	return fmt.Errorf("%w: %s %s", errConsumerLost, code, text)
}

func left(h nats.Header, header string) int {
	n, _ := strconv.Atoi(h.Get(header))
	return n
}
