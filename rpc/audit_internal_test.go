package rpc

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestAudited_CoversOperatorCalls: each call that needs an operator's verb has a line in the log, except reads; no other call has one.
func TestAudited_CoversOperatorCalls(t *testing.T) {
	want := maps.Clone(ofOperators)
	for _, reads := range []string{quotav1connect.AdminServiceGetStateHashProcedure, quotav1connect.AdminServiceDumpLogProcedure} {
		if !want[reads] {
			t.Errorf("%s is no operator's call any more", reads)
		}
		delete(want, reads)
	}
	for procedure := range want {
		if !audited[procedure] {
			t.Errorf("%s leaves no line in the log", procedure)
		}
	}
	for procedure := range audited {
		if !want[procedure] {
			t.Errorf("%s leaves a line in the log and is no operator's call", procedure)
		}
	}
}

// TestAudit_TokensHaveLinesOfTheirOwn: a token without an operator's verb that calls often does not suppress the line of another one.
func TestAudit_TokensHaveLinesOfTheirOwn(t *testing.T) {
	var log bytes.Buffer
	a := auditing{
		s:       &Server{logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: &log})},
		refused: new(raftnode.LoggedLines),
	}
	for _, id := range []string{"first", "first", "second"} {
		r := &request{who: &caller{id: id}, received: time.Now(), header: http.Header{}}
		a.write(context.WithValue(t.Context(), requestKey{}, r), quotav1connect.AdminServiceApplyQuotasProcedure, "q", "192.0.2.1:1", nil)
	}
	for _, id := range []string{"first", "second"} {
		if got := strings.Count(log.String(), "token="+id); got != 1 {
			t.Errorf("%d lines of %s, want 1:\n%s", got, id, log.String())
		}
	}
}
