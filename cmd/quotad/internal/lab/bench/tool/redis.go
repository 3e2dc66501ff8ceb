package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
	"github.com/quotad/quotad/raftnode/loopback"
)

// tokenBucket is the usual limiter in Redis: the bucket's tokens and the time of the last access, by Redis's own clock.
// KEYS[1] is the bucket; ARGV is its rate (tokens a second), its size, and the tokens to take.
const tokenBucket = `
local rate, size, take = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(bucket[1]) or size, tonumber(bucket[2]) or now
tokens = math.min(size, tokens + math.max(0, now - at) * rate)
local granted = tokens >= take
if granted then tokens = tokens - take end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
redis.call('EXPIRE', KEYS[1], math.ceil(size / rate) + 60)
return granted and 1 or 0`

const (
	// pipelined is the number of decisions in one pipeline.
	pipelined = 2000
	// replicaPatience bounds how long a WAIT waits for a replica.
	replicaPatience = 2 * time.Second
)

// bucket are the arguments of buckets that are never empty: a million tokens a second each.
var bucket = []any{1_000_000, 1_000_000, 1}

// redisSystem is one Redis that syncs its log after every write, and replicas that do the same. With replicas a decision
// counts once one of them has it in memory, which is all that WAIT reports.
func redisSystem(replicas int) bench.System {
	name := "redis"
	if replicas > 0 {
		name = fmt.Sprintf("redis, %d replicas, WAIT 1", replicas)
	}
	return bench.System{
		Name:    name,
		Version: func(ctx context.Context) (string, error) { return bench.VersionOf(ctx, "redis-server", "--version") },
		Start:   func(ctx context.Context, dir string) (bench.Running, error) { return startRedis(ctx, dir, replicas) },
	}
}

// redisServers is a master and its replicas.
type redisServers struct {
	bench.Processes
	client   *redis.Client
	script   string
	replicas int
}

func startRedis(ctx context.Context, dir string, replicas int) (_ *redisServers, err error) {
	addresses, err := loopback.Free(1 + replicas)
	if err != nil {
		return nil, err
	}
	r := &redisServers{replicas: replicas}
	defer func() {
		if err != nil {
			r.Stop()
		}
	}()
	for i, address := range addresses {
		name := fmt.Sprintf("redis%d", i+1)
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		data := filepath.Join(dir, name)
		if err := os.Mkdir(data, 0o700); err != nil {
			return nil, err
		}
		args := []string{
			"--port", port, "--bind", host, "--dir", data, "--appendonly", "yes", "--appendfsync", "always", "--save", "",
			"--maxclients", "4000",
		}
		if i > 0 {
			masterHost, masterPort, _ := strings.Cut(addresses[0], ":")
			args = append(args, "--replicaof", masterHost+" "+masterPort)
		}
		if err := r.Start(dir, name, "redis-server", args...); err != nil {
			return nil, err
		}
	}
	r.client = redis.NewClient(&redis.Options{Addr: addresses[0], PoolSize: 1100, MaxRetries: -1})
	return r, bench.Retry(ctx, r.ready)
}

// ready loads the script, and waits until all replicas have the master's writes.
func (r *redisServers) ready(ctx context.Context) (err error) {
	if r.script, err = r.client.ScriptLoad(ctx, tokenBucket).Result(); err != nil {
		return err
	}
	conn := r.client.Conn()
	defer func() { _ = conn.Close() }()
	if err := conn.Set(ctx, "ready", 1, 0).Err(); err != nil {
		return err
	}
	if r.replicas == 0 {
		return nil
	}
	have, err := conn.Wait(ctx, r.replicas, replicaPatience).Result()
	if err == nil && int(have) < r.replicas {
		err = fmt.Errorf("%d of %d replicas are there", have, r.replicas)
	}
	return err
}

// Works implements bench.Running.
func (r *redisServers) Works() []bench.Work {
	works := bench.Standard(func(ctx context.Context, _, quota int) error { return r.decide(ctx, bench.QuotaName(quota)) })
	return append(works, bench.Work{Name: bench.Batches, Callers: 4, Batch: pipelined, Do: func(ctx context.Context, _, _ int) error {
		names := make([]string, pipelined)
		for i := range names {
			names[i] = bench.QuotaName(i % bench.QuotaCount)
		}
		return r.decide(ctx, names...)
	}})
}

// Stop implements bench.Running.
func (r *redisServers) Stop() {
	if r.client != nil {
		_ = r.client.Close()
	}
	r.Processes.Stop()
}

// decide takes a token from each bucket, in one pipeline. With replicas it waits until one of them has the writes.
func (r *redisServers) decide(ctx context.Context, names ...string) error {
	pipe := r.client.Pipeline()
	takes := make([]*redis.Cmd, len(names))
	for i, name := range names {
		takes[i] = pipe.EvalSha(ctx, r.script, []string{name}, bucket...)
	}
	var copies *redis.Cmd
	if r.replicas > 0 {
		copies = pipe.Do(ctx, "WAIT", 1, replicaPatience.Milliseconds())
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	for _, take := range takes {
		if granted, err := take.Int(); err != nil || granted != 1 {
			return errors.Join(err, errors.New("a token was not granted"))
		}
	}
	if copies == nil {
		return nil
	}
	if have, err := copies.Int(); err != nil || have < 1 {
		return errors.Join(err, errors.New("no replica has it"))
	}
	return nil
}
