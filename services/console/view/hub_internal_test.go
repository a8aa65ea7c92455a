package view

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnAnswerThatDoesNotComeHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemo[int]()
		answers := make(chan int)
		n := 0
		ask := func(context.Context) (int, error) { n++; return <-answers, nil }
		first := make(chan int)
		go func() { got, _ := m.get(t.Context(), ask); first <- got }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := m.get(ctx, ask); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who may wait no longer gets %v", err)
		}
		m.forget() // something was done after the question
		answers <- 1
		if got := <-first; got != 1 {
			t.Errorf("the answer is %d", got)
		}
		go func() { answers <- 2 }()
		for range 2 {
			if got, err := m.get(t.Context(), ask); got != 2 || err != nil {
				t.Errorf("the answer after that is %d: %v", got, err)
			}
		}
		if n != 2 {
			t.Errorf("it was asked %d times", n)
		}
	})
}
