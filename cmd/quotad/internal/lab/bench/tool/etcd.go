package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
	"github.com/quotad/quotad/raftnode/loopback"
)

// etcdKind is a way to use etcd.
type etcdKind struct {
	name string
	// works are the works of the callers.
	works func(e *etcd) []bench.Work
}

var (
	// etcdLoop counts on a key as an application would: read it, and swap it unless another caller was faster. A failed
	// swap returns the current value, so that the next try needs no read of its own.
	etcdLoop = etcdKind{"etcd", func(e *etcd) []bench.Work { return bench.Standard(e.decide) }}
	// etcdPut decides nothing: it is the cost of one durable write of a majority, the minimum for a decision through etcd.
	etcdPut = etcdKind{"etcd, plain put", func(e *etcd) []bench.Work {
		return append(bench.Standard(e.put), bench.Work{Name: bench.Batches, Callers: 64, Batch: mostOfATxn, Do: e.putMany})
	}}
)

const (
	// mostOfATxn is the default maximum of operations in a transaction (--max-txn-ops).
	mostOfATxn = 128
	// callersOfAConnection is the number of callers of a client; a client's calls share its HTTP/2 connection.
	callersOfAConnection = 16
	connections          = 64
)

// etcdSystem is three nodes, called at their leader, so that no node forwards a call.
func etcdSystem(kind etcdKind) bench.System {
	return bench.System{
		Name:    kind.name,
		Version: func(ctx context.Context) (string, error) { return bench.VersionOf(ctx, "etcd", "--version") },
		Start:   func(ctx context.Context, dir string) (bench.Running, error) { return startEtcd(ctx, dir, kind) },
	}
}

// etcd is a cluster that serves.
type etcd struct {
	bench.Processes
	kind    etcdKind
	clients []*clientv3.Client
}

func startEtcd(ctx context.Context, dir string, kind etcdKind) (_ *etcd, err error) {
	free, err := loopback.Free(6)
	if err != nil {
		return nil, err
	}
	e := &etcd{kind: kind}
	defer func() {
		if err != nil {
			e.Stop()
		}
	}()
	members := make([]string, 3)
	for i := range members {
		members[i] = fmt.Sprintf("e%d=http://%s", i+1, free[3+i])
	}
	for i := range members {
		name := fmt.Sprintf("e%d", i+1)
		err := e.Start(dir, name, "etcd", "--name", name, "--data-dir", filepath.Join(dir, name),
			"--listen-client-urls", "http://"+free[i], "--advertise-client-urls", "http://"+free[i],
			"--listen-peer-urls", "http://"+free[3+i], "--initial-advertise-peer-urls", "http://"+free[3+i],
			"--initial-cluster", strings.Join(members, ","), "--initial-cluster-state", "new", "--log-level", "error")
		if err != nil {
			return nil, err
		}
	}
	leader, err := etcdLeader(ctx, free[:3])
	if err != nil {
		return nil, err
	}
	for range connections {
		c, err := etcdClient(leader)
		if err != nil {
			return nil, err
		}
		e.clients = append(e.clients, c)
	}
	return e, e.fill(ctx)
}

func etcdClient(address string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

// etcdLeader waits for the cluster and returns its leader's address.
func etcdLeader(ctx context.Context, addresses []string) (leader string, err error) {
	err = bench.Retry(ctx, func(ctx context.Context) error {
		for _, address := range addresses {
			c, err := etcdClient(address)
			if err != nil {
				return err
			}
			status, err := statusOf(ctx, c, address)
			_ = c.Close()
			if err != nil {
				return err
			}
			if status.Leader != 0 && status.Leader == status.Header.MemberId {
				leader = address
			}
		}
		if leader == "" {
			return errors.New("no leader is known")
		}
		return nil
	})
	return leader, err
}

func statusOf(ctx context.Context, c *clientv3.Client, address string) (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return c.Status(ctx, address)
}

// fill gives each key its first count.
func (e *etcd) fill(ctx context.Context) error {
	for from := -1; from < bench.QuotaCount; from += mostOfATxn {
		var puts []clientv3.Op
		for quota := from; quota < min(from+mostOfATxn, bench.QuotaCount); quota++ {
			puts = append(puts, clientv3.OpPut(bench.QuotaName(quota), "0"))
		}
		if _, err := e.clients[0].Txn(ctx).Then(puts...).Commit(); err != nil {
			return err
		}
	}
	return nil
}

// Works implements bench.Running.
func (e *etcd) Works() []bench.Work { return e.kind.works(e) }

// Stop implements bench.Running.
func (e *etcd) Stop() {
	for _, c := range e.clients {
		_ = c.Close()
	}
	e.Processes.Stop()
}

func (e *etcd) client(caller int) *clientv3.Client {
	return e.clients[caller/callersOfAConnection%len(e.clients)]
}

// decide adds one to a key's count. The first read may be stale (serializable), which is cheaper: the swap detects it.
func (e *etcd) decide(ctx context.Context, caller, quota int) error {
	c, key := e.client(caller), bench.QuotaName(quota)
	read, err := c.Get(ctx, key, clientv3.WithSerializable())
	if err != nil {
		return err
	}
	for found := read.Kvs; ; {
		if len(found) != 1 {
			return errors.New("etcd lost a key")
		}
		count, err := strconv.ParseInt(string(found[0].Value), 10, 64)
		if err != nil {
			return err
		}
		swapped, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", found[0].ModRevision)).
			Then(clientv3.OpPut(key, strconv.FormatInt(count+1, 10))).Else(clientv3.OpGet(key)).Commit()
		if err != nil || swapped.Succeeded {
			return err
		}
		found = swapped.Responses[0].GetResponseRange().Kvs
	}
}

// put writes a key.
func (e *etcd) put(ctx context.Context, caller, quota int) error {
	_, err := e.client(caller).Put(ctx, bench.QuotaName(quota), "1")
	return err
}

// putMany writes as many keys as a transaction may.
func (e *etcd) putMany(ctx context.Context, caller, n int) error {
	puts := make([]clientv3.Op, mostOfATxn)
	for i := range puts {
		puts[i] = clientv3.OpPut(bench.QuotaName((caller*mostOfATxn+n*31+i)%bench.QuotaCount), "1")
	}
	_, err := e.client(caller).Txn(ctx).Then(puts...).Commit()
	return err
}
