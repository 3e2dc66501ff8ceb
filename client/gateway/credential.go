package gateway

import (
	"net/http"
	"strings"
	"sync"

	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/identity"
	"github.com/quotad/quotad/client/gateway/keys"
)

// affinity remembers which key of a pool a holder used last: caches and earlier answers live with a key's organisation.
type affinity struct {
	mu   sync.Mutex
	last map[string]string
}

// maxAffinity bounds the holders that are remembered.
const maxAffinity = 10_000

func (a *affinity) get(holder string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last[holder]
}

func (a *affinity) set(holder, key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == nil || len(a.last) >= maxAffinity {
		a.last = map[string]string{}
	}
	a.last[holder] = key
}

// chooseKey sets the key of a call and with it the prefix of its quotas. The answer is a refusal where no key is meant for it.
func (c *call) chooseKey() (dialect.Refusal, bool) {
	c.prefixOfQuotas = c.upstream.config.Quotas
	if c.upstream.keys == nil {
		if c.upstream.dialect == dialect.Bedrock && strings.HasPrefix(c.header.Get("Authorization"), "AWS4-") {
			return dialect.Refusal{
				Status: http.StatusBadRequest, Final: true,
				Message: "quotad: a call signed with SigV4 names its host and cannot pass " +
					"a gateway: use a key of Bedrock (AWS_BEARER_TOKEN_BEDROCK), and in Claude Code " +
					"CLAUDE_CODE_SKIP_BEDROCK_AUTH=1 with a key of the gateway",
			}, true
		}
		return dialect.Refusal{}, false
	}
	candidates := c.upstream.keys.For(c.caller.Class, c.caller.Holder)
	if len(candidates) == 0 {
		return dialect.Refusal{Status: http.StatusForbidden, Final: true, Message: "quotad: no key of the upstream " + c.upstream.name +
			" is meant for the holder " + identity.Quote(c.caller.Holder)}, true
	}
	c.key = c.pick(candidates)
	c.prefixOfQuotas = c.key.Quotas
	if len(candidates) > 1 {
		c.upstream.affinity.set(c.caller.Holder, c.key.Name)
	}
	return dialect.Refusal{}, false
}

// pick returns the key that the holder used last, if it has room or the call goes on from an earlier answer, else the one with the
// largest free share.
func (c *call) pick(candidates []*keys.Key) *keys.Key {
	last := ""
	if len(candidates) > 1 {
		last = c.upstream.affinity.get(c.caller.Holder)
	}
	best, most := candidates[0], -1.0
	for _, k := range candidates {
		share := c.freeShare(k)
		if k.Name == last && (share > roomShare || c.ask != nil && c.ask.Prior != "") {
			return k
		}
		if share > most {
			best, most = k, share
		}
	}
	return best
}

// roomShare is the free share from which a key has room.
const roomShare = 0.02

// freeShare returns the least free share of a model's quotas of a key, from 0 to 1; 1 where none are known.
func (c *call) freeShare(k *keys.Key) float64 {
	least := 1.0
	target := c.gateway.catalog.Find(c.state.config.Models, c.upstream.name, k.Quotas, c.model)
	for _, q := range target.Parts {
		if !q.Open {
			return 0
		}
		least = min(least, float64(max(q.Available, 0))/float64(max(q.Usable, 1)))
	}
	return least
}

// inject sets the call's key and nothing that the caller sent.
func (c *call) inject(header http.Header) {
	identity.StripCredentials(header)
	value := c.key.Value()
	switch c.op.Dialect {
	case dialect.Anthropic:
		if !strings.HasPrefix(value, "sk-ant-oat") { // the token of a login is a bearer
			header.Set("X-Api-Key", value)
			return
		}
	case dialect.Azure:
		header.Set("Api-Key", value)
		return
	case dialect.Gemini:
		header.Set("X-Goog-Api-Key", value)
		return
	case dialect.OpenAI, dialect.Bedrock, dialect.Codex, dialect.GitHub, dialect.Generic:
	}
	header.Set("Authorization", "Bearer "+value)
}
