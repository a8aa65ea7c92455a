package produce

import "context"

// finished notes that a batch can be answered.
func (p *producer) finished(b *produceBatch) {
	via := b.call.Via // once it is ready the batch is the sender's
	p.mu.Lock()
	b.ready = true
	head := len(p.out) > 0 && p.out[0] == b
	p.mu.Unlock()
	switch {
	case !head:
	case via != nil:
		via.Later(p)
	default:
		p.Wake()
	}
}

// send is the one sender of the stream: it answers batches in order.
func (p *producer) send(ctx context.Context) error {
	var answers []*produceBatch
	for {
		p.mu.Lock()
		controls := p.controls
		p.controls = nil
		n := 0
		for n < len(p.out) && p.out[n].ready {
			n++
		}
		answers = append(answers[:0], p.out[:n]...)
		p.out = p.out[:copy(p.out, p.out[n:])]
		over := p.ended && len(p.out) == 0
		p.mu.Unlock()
		for _, m := range controls {
			if err := p.grpc.Send(m); err != nil {
				return err
			}
		}
		for _, b := range answers {
			generation := p.s.Queues.Engine.Generation()
			tell := ""
			if generation != p.generation {
				p.generation, tell = generation, generation
			}
			if err := p.grpc.SendMsg(b.answer(tell)); err != nil {
				return err
			}
		}
		if n > 0 {
			p.reuse(answers)
			continue
		}
		if over {
			return nil
		}
		select {
		case <-p.signal:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reuse takes answered batches back.
func (p *producer) reuse(answers []*produceBatch) {
	p.mu.Lock()
	for _, b := range answers {
		p.bytes -= b.bytes
		if len(p.free) < keptBatches {
			b.reset()
			p.free = append(p.free, b)
		}
	}
	p.mu.Unlock()
	select {
	case p.room <- struct{}{}:
	default:
	}
}
