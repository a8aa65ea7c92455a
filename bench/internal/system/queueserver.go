package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/queue"
)

// QueueServerConfig is a queue service in a child.
type QueueServerConfig struct {
	RedisURL    string `json:"redis_url"`    // empty: the memory engine
	HistoryKeys int    `json:"history_keys"` // of which events are remembered: 0 by default, below zero none
}

// QueueServerInfo is where the queue and the echo beside it serve.
type QueueServerInfo struct {
	Queue string `json:"queue"`
	Echo  string `json:"echo"`
}

// QueueServer is the servant that serves a queue and an echo.
func QueueServer(ctx context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg QueueServerConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	tel, err := telemetry.Setup(ctx, telemetry.Config{Service: "queue", LogLevel: "warn"})
	if err != nil {
		return nil, err
	}
	s, err := queue.New(queue.Config{
		RPC: rpc.ServerConfig{TLS: load.ServerTLS()}, RedisURL: cfg.RedisURL, HistoryKeys: cfg.HistoryKeys, Queues: []queue.QueueConfig{{Name: load.BenchQueue}},
	}, tel)
	if err != nil {
		return nil, err
	}
	stop := harness.InBackground(ctx, s.Run)
	var info QueueServerInfo
	if info.Queue, err = s.Addr(ctx); err != nil {
		return nil, errors.Join(err, stop())
	}
	if info.Echo, err = load.StartEcho(ctx, &load.Echo{}); err != nil {
		return nil, errors.Join(err, stop())
	}
	return &harness.Servant{Info: info, Stop: stop}, nil
}

// Capacity is the rate at which the CPU that one turn took of all processes would fill every core.
func Capacity(t load.Turns, all time.Duration) float64 {
	return float64(runtime.NumCPU()) * float64(t.Done) / all.Seconds()
}

// RedisCPU is what a Redis has spent so far, in seconds.
func RedisCPU(ctx context.Context, store *redis.Client) (float64, error) {
	return InfoNumber(ctx, store, "cpu", "used_cpu_sys", "used_cpu_user")
}

// InfoNumber is the sum of numbers of a section of INFO.
func InfoNumber(ctx context.Context, store *redis.Client, section string, names ...string) (float64, error) {
	text, err := store.Info(ctx, section).Result()
	if err != nil {
		return 0, err
	}
	var sum float64
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if slices.Contains(names, name) {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, fmt.Errorf("INFO %s: %s: %w", section, name, err)
			}
			sum += v
		}
	}
	return sum, nil
}
