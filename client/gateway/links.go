package gateway

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// urlHeaders are the headers of answers that have one URL, which the client follows.
var urlHeaders = []string{"Location", "Content-Location", "Operation-Location", "X-Goog-Upload-Url"}

// link is one target of a Link header.
var link = regexp.MustCompile(`<([^<>]*)>`)

// rebase turns URLs of the upstream's own origin in an answer's headers into URLs of the gateway: GitHub's next page is an
// absolute URL, which would otherwise leave the gateway. Of a call that was routed by its host, they come back anyway.
func (c *call) rebase(header http.Header) {
	if c.host {
		return
	}
	for _, name := range urlHeaders {
		if value := header.Get(name); value != "" {
			header.Set(name, c.rebased(value))
		}
	}
	for i, value := range header["Link"] {
		header["Link"][i] = link.ReplaceAllStringFunc(value, func(target string) string {
			return "<" + c.rebased(target[1:len(target)-1]) + ">"
		})
	}
}

func (c *call) rebased(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != c.upstream.base.Scheme || !strings.EqualFold(u.Host, c.upstream.base.Host) {
		return text
	}
	path, below := strings.CutPrefix(u.EscapedPath(), c.upstream.base.EscapedPath())
	if !below || path != "" && path[0] != '/' {
		return text
	}
	out := c.scheme + "://" + c.clientHost + c.prefix + path
	if u.RawQuery != "" {
		out += "?" + u.RawQuery
	}
	if u.Fragment != "" {
		out += "#" + u.EscapedFragment()
	}
	return out
}

// explainHeader says who the caller is taken for, and how long the call waited, for callers that asked.
func (c *call) explainHeader() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	said := fmt.Sprintf("holder=%s;class=%s;wait=%dms;retries=%d", url.QueryEscape(c.caller.Holder), c.caller.Class,
		c.outcome.waited/time.Millisecond, c.outcome.retries)
	if c.outcome.batch != "" {
		said += ";batch=" + url.QueryEscape(c.outcome.batch)
	}
	return said
}
