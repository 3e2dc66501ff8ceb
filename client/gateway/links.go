package gateway

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// urlHeaders are headers of answers that hold one URL for the client to follow.
var urlHeaders = []string{"Location", "Content-Location", "Operation-Location", "X-Goog-Upload-Url"}

// link matches one target of a Link header.
var link = regexp.MustCompile(`<([^<>]*)>`)

// rebase replaces URLs of the upstream's own origin in an answer's headers by URLs of the gateway: GitHub's next page is an absolute
// URL, which would bypass the gateway. If the call was routed by its host, such URLs already lead to the gateway.
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

// explainHeader describes the caller as identified and the call's wait, for callers that request it.
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
