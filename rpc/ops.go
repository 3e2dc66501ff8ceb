package rpc

import (
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// Capacity of the operators' port. DefaultMaxOpsConnections is for its Listener.
const (
	DefaultMaxOpsConnections = 256
	maxOpsCalls              = 256
	maxOpsStreams            = 64
	// profileWithin bounds how long a profile may take.
	profileWithin = 2 * time.Minute
)

// notOfOperators are the calls by which holders take, use and release quota. The operators' port does not serve them.
var notOfOperators = map[string]bool{
	quotav1connect.QuotaServiceReserveProcedure: true, quotav1connect.QuotaServiceConsumeProcedure: true,
	quotav1connect.QuotaServiceSettleProcedure: true, quotav1connect.QuotaServiceReleaseProcedure: true,
	quotav1connect.QuotaServiceRenewProcedure: true, quotav1connect.QuotaServiceWithdrawProcedure: true,
	quotav1connect.QuotaServiceReportProcedure: true, quotav1connect.QuotaServiceBatchProcedure: true,
	quotav1connect.TaskServiceBeginTaskProcedure: true, quotav1connect.TaskServiceRenewTaskProcedure: true,
	quotav1connect.TaskServiceEndTaskProcedure: true,
	takePath: true, reportPath: true,
}

// opsRoutes returns all that the operators' port serves.
func (s *Server) opsRoutes(b *portBudgets, profiles bool) (all []route) {
	for _, r := range s.routesOf(b) {
		if !notOfOperators[r.pattern] {
			all = append(all, r)
		}
	}
	if !profiles {
		return all
	}
	for path, serve := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} { // in any order
		all = append(all, route{
			pattern: path, handler: s.visited(b, b.visits, s.debugging(serve)), limits: limits{methods: pageMethods, whole: profileWithin},
		})
	}
	return all
}

// newOpsBudgets makes the budgets of the operators' port.
func newOpsBudgets() *portBudgets {
	b := newPortBudgets(DefaultMaxOpsConnections, maxOpsCalls, maxOpsStreams)
	b.ownShares = true
	return b
}

// debugging serves callers with the verb debug.
func (s *Server) debugging(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := s.config.Tokens.identify(r.Header.Get("Authorization"))
		if err == nil {
			err = who.may(VerbDebug)
		}
		if err != nil {
			_ = s.errors.Write(w, r, err)
			return
		}
		if strings.HasSuffix(r.URL.Path, "/profile") || strings.HasSuffix(r.URL.Path, "/trace") {
			w.Header().Set("Cache-Control", "no-store")
		}
		next.ServeHTTP(w, r)
	})
}
