package bench

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// etcdKey is the one key that all callers count on.
var etcdKey = encode("quota")

func encode(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func etcdName(callers int) string {
	return fmt.Sprintf("etcd: %d callers, read and compare-and-swap on one key", callers)
}

// etcdHTTP keeps one connection for each caller.
var etcdHTTP = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 300}}

// etcdWorks are the works on etcd: what a quota by hand does. A decision is a swap that succeeded.
func etcdWorks(p *processes) []work {
	do := func(ctx context.Context, caller, _ int) error {
		address := p.addresses[caller%len(p.addresses)]
		for {
			swapped, err := etcdSwap(ctx, address)
			if err != nil || swapped {
				return err
			}
		}
	}
	return []work{{etcdName(1), 1, do}, {etcdName(64), 64, do}}
}

// etcdSwap reads the count and swaps it for one more, if nobody was faster.
func etcdSwap(ctx context.Context, address string) (bool, error) {
	var read struct {
		Kvs []struct {
			Value    string `json:"value"`
			Revision string `json:"mod_revision"`
		} `json:"kvs"`
	}
	if err := etcdCall(ctx, address, "range", map[string]any{"key": etcdKey}, &read); err != nil {
		return false, err
	}
	if len(read.Kvs) != 1 {
		return false, errors.New("etcd lost the key")
	}
	value, err := base64.StdEncoding.DecodeString(read.Kvs[0].Value)
	if err != nil {
		return false, err
	}
	count, err := strconv.Atoi(string(value))
	if err != nil {
		return false, err
	}
	var swapped struct {
		Succeeded bool `json:"succeeded"`
	}
	err = etcdCall(ctx, address, "txn", map[string]any{
		"compare": []any{map[string]any{
			"key": etcdKey, "target": "MOD", "result": "EQUAL", "mod_revision": read.Kvs[0].Revision,
		}},
		"success": []any{map[string]any{
			"request_put": map[string]any{"key": etcdKey, "value": encode(strconv.Itoa(count + 1))},
		}},
	}, &swapped)
	return swapped.Succeeded, err
}

// etcdCall calls etcd's JSON interface.
func etcdCall(ctx context.Context, address, method string, request, answer any) error {
	data, err := json.Marshal(request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v3/kv/"+method, body(data))
	if err != nil {
		return err
	}
	res, err := etcdHTTP.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd answers %s", res.Status)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(res.Body).Decode(answer)
}
