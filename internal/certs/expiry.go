package certs

import (
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Expires is when the first certificate of a PEM file ends.
func Expires(path string) (time.Time, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, err
	}
	c, err := parse(data)
	if err != nil {
		return time.Time{}, err
	}
	return c.NotAfter, nil
}

// NewCollector shows when certificates end, in
// deltaplane_certificate_expiration_timestamp_seconds, which is 0 for a file that cannot be read.
// The files are by their use, the value of the label, and are read at each scrape; those without a
// name are left out.
func NewCollector(files map[string]string) prometheus.Collector {
	return collector{files, prometheus.NewDesc("deltaplane_certificate_expiration_timestamp_seconds",
		"When the certificate in use ends, in seconds since 1970; 0 if its file cannot be read.", []string{"use"}, nil)}
}

type collector struct {
	files map[string]string
	desc  *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c collector) Describe(all chan<- *prometheus.Desc) { all <- c.desc }

// Collect implements prometheus.Collector.
func (c collector) Collect(all chan<- prometheus.Metric) {
	for use, path := range c.files {
		if path == "" {
			continue
		}
		until, err := Expires(path)
		value := float64(until.Unix())
		if err != nil {
			value = 0
		}
		all <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, value, use)
	}
}
