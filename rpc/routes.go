package rpc

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// Bounds of calls that need no token.
const (
	maxHealthBody  = 4 << 10
	maxReflectBody = 16 << 10
	healthWithin   = 10 * time.Second
	reflectWithin  = time.Minute
)

// route is one path that a port serves. One list has all of them (Server.routes): no other path is served, and those in it are bounded.
type route struct {
	// pattern is a path in the form of http.ServeMux.
	pattern string
	handler http.Handler
	limits  limits
}

// limits bound the requests of a route. The zero value allows no body, and bounds only the writes of the answer.
type limits struct {
	// methods are the allowed ones; none: any.
	methods []string
	// body is how many bytes of a body are read, as they were sent; 0: a request with a body is refused. An unpacked body has the same
	// bound (unpacked), or packed bodies are refused (bare).
	body int64
	// endless lifts the bound of the whole body, for one that is read in pieces with bounds of their own; each piece has the time of a
	// body.
	endless bool
	// whole bounds how long the whole call may take; 0: as long as its caller keeps reading.
	whole time.Duration
}

// pageMethods are the methods of pages, which are only read.
var pageMethods = []string{http.MethodGet, http.MethodHead}

// procedureMethods are those of Connect: GET is for calls without side effects, which its handlers check.
var procedureMethods = []string{http.MethodPost, http.MethodGet}

// page makes the route of something that is only read.
func page(path string, handler http.Handler) route {
	return route{pattern: path, handler: handler, limits: limits{methods: pageMethods, whole: healthWithin}}
}

// routes returns all that the API port serves.
func (s *Server) routes() []route { return s.routesOf(s.budgets) }

// routesOf returns all that a port with these budgets may serve.
func (s *Server) routesOf(b *portBudgets) []route {
	options := []connect.HandlerOption{
		connect.WithInterceptors(s.interceptors()...),
		connect.WithRecover(s.recovered), codecs(),
		connect.WithReadMaxBytes(maxMessage), connect.WithSendMaxBytes(maxAnswer), connect.WithCompressMinBytes(compressFrom),
	}
	_, quotas := quotav1connect.NewQuotaServiceHandler(&quotaService{s}, options...)
	_, admin := quotav1connect.NewAdminServiceHandler(&adminService{s}, options...)
	_, tasks := quotav1connect.NewTaskServiceHandler(&taskService{s}, options...)
	all := slices.Concat(
		s.procedures(b, quotav1.File_quota_v1_quota_proto, quotas),
		s.procedures(b, quotav1.File_quota_v1_admin_proto, admin),
		s.procedures(b, quotav1.File_quota_v1_task_proto, tasks),
		s.takeRoutes(b), s.healthRoutes(b), s.reflectionRoutes(b),
	)
	return append(all,
		page("/livez", s.judged(b, b.lives, http.HandlerFunc(s.serveLive))),
		page("/readyz", s.judged(b, b.health, http.HandlerFunc(s.serveReady))),
		page("/metrics", s.judged(b, b.scrapes, s.exposition)),
		route{
			pattern: watchPath, handler: s.admitted(b, quotav1connect.QuotaServiceWatchProcedure, true, http.HandlerFunc(s.serveWatch)),
			limits: limits{methods: []string{http.MethodGet}},
		},
		route{pattern: "/", handler: s.visited(b, b.visits, http.HandlerFunc(serveUnknown)), limits: limits{whole: healthWithin}},
	)
}

// procedures makes the routes of a schema's services: calls of known callers.
func (s *Server) procedures(b *portBudgets, file protoreflect.FileDescriptor, handler http.Handler) (all []route) {
	for i := range file.Services().Len() {
		service := file.Services().Get(i)
		for j := range service.Methods().Len() {
			method := service.Methods().Get(j)
			procedure := "/" + string(service.FullName()) + "/" + string(method.Name())
			stream := method.IsStreamingServer() || method.IsStreamingClient()
			all = append(all, route{
				pattern: procedure, handler: s.admitted(b, procedure, stream, handler), limits: limitsOf(procedure, method),
			})
		}
	}
	return all
}

func limitsOf(procedure string, method protoreflect.MethodDescriptor) limits {
	l := limits{methods: procedureMethods, body: longestMessage(procedure), whole: maxCall}
	if method.IsStreamingServer() || method.IsStreamingClient() {
		l.whole = 0
	}
	l.endless = method.IsStreamingClient()
	return l
}

// bare returns the options of handlers that need no token: small messages, never packed.
func bare(most int) []connect.HandlerOption {
	return []connect.HandlerOption{connect.WithReadMaxBytes(most), connect.WithCompression("gzip", nil, nil)}
}

// healthRoutes serve gRPC's health protocol.
func (s *Server) healthRoutes(b *portBudgets) []route {
	path, health := grpchealth.NewHandler(grpcHealth{s}, bare(maxHealthBody)...)
	return []route{
		{
			pattern: path + "Check", handler: s.judged(b, b.health, health),
			limits: limits{methods: procedureMethods, body: maxHealthBody, whole: healthWithin},
		},
		{
			pattern: path + "Watch", handler: s.visited(b, b.watchers, s.untilDrained(health)),
			limits: limits{methods: procedureMethods, body: maxHealthBody},
		},
	}
}

// reflectionRoutes list the services and their schema, for tools.
func (s *Server) reflectionRoutes(b *portBudgets) (all []route) {
	reflector := grpcreflect.NewStaticReflector(
		quotav1connect.QuotaServiceName, quotav1connect.AdminServiceName, quotav1connect.TaskServiceName, grpchealth.HealthV1ServiceName)
	for _, reflect := range []func(*grpcreflect.Reflector, ...connect.HandlerOption) (string, http.Handler){
		grpcreflect.NewHandlerV1, grpcreflect.NewHandlerV1Alpha,
	} {
		path, reflection := reflect(reflector, bare(maxReflectBody)...)
		all = append(all, route{
			pattern: strings.TrimSuffix(path, "/") + "/ServerReflectionInfo", handler: s.visited(b, b.visits, s.untilDrained(reflection)),
			limits: limits{methods: procedureMethods, body: maxReflectBody, whole: reflectWithin},
		})
	}
	return all
}

// serveRoutes makes one handler of routes, each within its limits.
func (s *Server) serveRoutes(b *portBudgets, all []route) http.Handler {
	mux := http.NewServeMux()
	for _, r := range all {
		mux.Handle(r.pattern, s.bounded(b, r))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.running.enter()
		defer s.running.leave()
		if c := connectionOf(r.Context()); c != nil {
			defer c.serve()()
		}
		control := http.NewResponseController(w)
		// Bounds the write of an answer's end, also of an answer that is only a header.
		defer func() { _ = control.SetWriteDeadline(time.Now().Add(s.config.WriteAnswer)) }()
		answer := &answerWriter{ResponseWriter: w, control: control, within: s.config.WriteAnswer, contentType: r.Header.Get("Content-Type")}
		if hasBody(r) { // also one that no handler reads: the server drops the rest of it
			_ = control.SetReadDeadline(time.Now().Add(s.config.ReadBody))
			if r.ProtoMajor == 1 {
				answer.body = &watchedBody{ReadCloser: r.Body}
				r.Body = answer.body
			}
		}
		mux.ServeHTTP(answer, r)
	})
}

func hasBody(r *http.Request) bool {
	return r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0
}

// fieldsOf counts the fields of a header, each repetition of one as well.
func fieldsOf(header http.Header) (n int) {
	for _, values := range header {
		n += len(values)
	}
	return n
}

// bounded serves a route within its limits.
func (s *Server) bounded(b *portBudgets, to route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case fieldsOf(r.Header) > maxFields:
			s.refuse(b, w, r, http.StatusRequestHeaderFieldsTooLarge)
			return
		case to.limits.methods != nil && !slices.Contains(to.limits.methods, r.Method):
			w.Header().Set("Allow", strings.Join(to.limits.methods, ", "))
			s.refuse(b, w, r, http.StatusMethodNotAllowed)
			return
		case hasBody(r) && to.limits.body == 0 && !to.limits.endless && to.limits.methods != nil:
			s.refuse(b, w, r, http.StatusRequestEntityTooLarge)
			return
		}
		if hasBody(r) {
			body := &boundedBody{ReadCloser: r.Body, control: http.NewResponseController(w), within: s.config.ReadBody, rolling: to.limits.endless}
			if !to.limits.endless {
				body.ReadCloser = http.MaxBytesReader(w, r.Body, to.limits.body)
			}
			body.begin()
			r.Body = body
		}
		if to.limits.whole > 0 {
			ctx, cancel := context.WithTimeout(r.Context(), to.limits.whole)
			defer cancel()
			r = r.WithContext(ctx)
		}
		to.handler.ServeHTTP(w, r)
	})
}

// refuse answers with a status alone, when it is the caller's turn, and does not wait for the rest of a body.
func (s *Server) refuse(b *portBudgets, w http.ResponseWriter, r *http.Request, status int) {
	share := s.shareOfVisit(b, r)
	defer share.Leave()
	if hasBody(r) && r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
	s.awaitRefusal(b, share, w, r)
	http.Error(w, http.StatusText(status), status)
}
