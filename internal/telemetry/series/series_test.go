package series_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/deltaplane/deltaplane/internal/telemetry/series"
)

func TestNamesBeyondTheBoundShareOneValueUntilOneIsForgotten(t *testing.T) {
	t.Parallel()
	n := series.NewNames(2)
	says := func(name, want string) {
		t.Helper()
		if got := n.Of(name); got != want {
			t.Errorf("%s is shown as %s, want %s", name, got, want)
		}
	}
	says("a", "a")
	says("b", "b")
	says("c", series.Rest)
	says("a", "a")
	n.Forget("c")
	says("d", series.Rest)
	n.Forget("a")
	says("c", "c")
	says("a", series.Rest)
}

func TestANameSpelledLikeTheRestHasNoSeriesOfItsOwn(t *testing.T) {
	t.Parallel()
	n := series.NewNames(1)
	_ = n.Of(series.Rest)
	if got := n.Of("a"); got != "a" {
		t.Errorf("a is shown as %q: the other name took its place", got)
	}
}

func TestNamesThatShareALabelValueHaveOneSeries(t *testing.T) {
	t.Parallel()
	descs := map[series.How]*prometheus.Desc{}
	for _, how := range []series.How{series.Sum, series.Max, series.Min, series.Own} {
		descs[how] = prometheus.NewDesc(fmt.Sprint("m", how), "m", []string{"name", "more"}, nil)
	}
	var f series.Fold
	for _, v := range []struct {
		name  string
		value float64
	}{{"a", 7}, {series.Rest, 3}, {series.Rest, 1}, {series.Rest, 2}} {
		for how, d := range descs {
			f.Add(d, prometheus.GaugeValue, how, v.value, v.name, "x")
		}
	}
	ch := make(chan prometheus.Metric, 100)
	f.Send(ch)
	close(ch)
	got := map[string]float64{}
	for m := range ch {
		var out dto.Metric
		if err := m.Write(&out); err != nil {
			t.Fatal(err)
		}
		for how, d := range descs {
			if m.Desc() == d {
				got[fmt.Sprint(how, " ", out.GetLabel()[1].GetValue())] = out.GetGauge().GetValue()
			}
		}
	}
	want := map[string]float64{
		"0 a": 7, "1 a": 7, "2 a": 7, "3 a": 7,
		"0 other": 6, "1 other": 3, "2 other": 1,
	}
	if !maps.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
}
