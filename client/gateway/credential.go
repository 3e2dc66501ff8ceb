package gateway

import (
	"bytes"
	"net/http"
	"strings"
	"sync"

	"github.com/quotad/quotad/client/gateway/catalog"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/identity"
	"github.com/quotad/quotad/client/gateway/keys"
)

// affinity records the last key of each holder, and the key of each answer: caches, and answers that later calls continue, belong to a
// key's organisation.
type affinity struct {
	mu sync.Mutex
	// last are the newest, older those before them.
	last, older map[string]string
}

// maxAffinity bounds the newest records, and the older ones.
const maxAffinity = 10_000

func (a *affinity) get(of string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if key, ok := a.last[of]; ok {
		return key
	}
	return a.older[of]
}

func (a *affinity) set(of, key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == nil || len(a.last) >= maxAffinity {
		a.last, a.older = map[string]string{}, a.last
	}
	a.last[of] = key
}

// answerOf returns the name that affinity has for an answer; no holder has such a name.
func answerOf(id string) string { return "\x00" + id }

// findKeys determines the keys that a call may use. It returns a refusal if there are none.
func (c *call) findKeys() (dialect.Refusal, bool) {
	c.prefixOfQuotas = c.upstream.config.Quotas
	if c.upstream.keys == nil {
		if c.upstream.dialect == dialect.Bedrock && strings.HasPrefix(c.header.Get("Authorization"), "AWS4-") {
			return dialect.Refusal{
				Status: http.StatusBadRequest, Final: true,
				Message: "quotad: a call signed with SigV4 is bound to its host and cannot pass through " +
					"a gateway: use a key of Bedrock (AWS_BEARER_TOKEN_BEDROCK), and in Claude Code " +
					"CLAUDE_CODE_SKIP_BEDROCK_AUTH=1 with a key of the gateway",
			}, true
		}
		return dialect.Refusal{}, false
	}
	c.keys = c.upstream.keys.For(c.caller.Class, c.caller.Holder)
	if len(c.keys) == 0 {
		return dialect.Refusal{Status: http.StatusForbidden, Reason: "NO_KEY", Final: true, Message: "quotad: no key of the upstream " +
			c.upstream.name + " is allowed for the holder " + identity.Quote(c.caller.Holder)}, true
	}
	return dialect.Refusal{}, false
}

// aim sets the prefix of the call's quotas, and its key. With pools of several keys it is the upstream's prefix, and the cluster
// chooses: the key is the granted member's, unless the call is bound to one. Otherwise the gateway chooses a key, and uses that key's
// prefix.
func (c *call) aim(pooled bool) {
	c.prefixOfQuotas = c.upstream.config.Quotas
	switch {
	case len(c.keys) == 0:
	case len(c.keys) > 1 && pooled:
		c.key = c.bound()
	default:
		c.key = c.pick()
		c.prefixOfQuotas = c.key.Quotas
	}
}

// aimAt aims at the quotas of a model, and returns them.
func (c *call) aimAt(model string) catalog.Target {
	own := c.find(c.upstream.config.Quotas, model)
	c.aim(own.Pooled())
	if c.prefixOfQuotas == c.upstream.config.Quotas {
		return own
	}
	return c.find(c.prefixOfQuotas, model)
}

// find returns the quotas of a model below a prefix.
func (c *call) find(prefix, model string) catalog.Target {
	return c.gateway.catalog.Find(c.state.config.Models, c.upstream.name, prefix, model)
}

// encryptedThoughts occurs in calls with a model's reasoning, encrypted for the organisation of the key that received it.
var encryptedThoughts = []byte(`"encrypted_content"`)

// bound returns the key that the call must use because it continues data of that key's organisation: the key of the answer that it
// names, or else the holder's last key. nil: any key can serve it.
func (c *call) bound() *keys.Key {
	if c.ask == nil || c.ask.Prior == "" && (c.body == nil || !bytes.Contains(c.body.data, encryptedThoughts)) {
		return nil
	}
	if k := keys.Named(c.keys, c.upstream.affinity.get(answerOf(c.ask.Prior))); k != nil {
		return k
	}
	return keys.Named(c.keys, c.upstream.affinity.get(c.caller.Holder))
}

// usedKey records which of several keys served the holder, or made an answer.
func (c *call) usedKey(of string, k *keys.Key) {
	if len(c.keys) > 1 && k != nil {
		c.upstream.affinity.set(of, k.Name)
	}
}

// pick returns the key that the call is bound to, or the holder's last key if it has room, else the one with the largest free share.
func (c *call) pick() *keys.Key {
	if len(c.keys) == 1 {
		return c.keys[0]
	}
	if k := c.bound(); k != nil {
		return k
	}
	last := c.upstream.affinity.get(c.caller.Holder)
	best, most := c.keys[0], -1.0
	for _, k := range c.keys {
		share := c.freeShare(k)
		if k.Name == last && share > roomShare {
			return k
		}
		if share > most {
			best, most = k, share
		}
	}
	return best
}

// roomShare is the free share above which a key has room.
const roomShare = 0.02

// freeShare returns the least free share, from 0 to 1, of a key's quotas for the model; 1 if none are known.
func (c *call) freeShare(k *keys.Key) float64 {
	least := 1.0
	for _, q := range c.find(k.Quotas, c.model).Parts {
		if !q.Open {
			return 0
		}
		least = min(least, float64(max(q.Available, 0))/float64(max(q.Usable, 1)))
	}
	return least
}

// inject sets a key in the header of an attempt and removes all other credentials.
func (c *call) inject(header http.Header, key *keys.Key) {
	identity.StripCredentials(header)
	value := key.Value()
	switch c.op.Dialect {
	case dialect.Anthropic:
		if !strings.HasPrefix(value, "sk-ant-oat") { // a login token is a bearer token
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
