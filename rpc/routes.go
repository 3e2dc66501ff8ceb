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

// Bounds of what anybody may call without a token.
const (
	maxHealthBody  = 4 << 10
	maxReflectBody = 16 << 10
	healthWithin   = 10 * time.Second
	reflectWithin  = time.Minute
)

// route is one path that a port serves. All that a port serves stands in one list of them (Server.routes): what is not in it is not
// served, and what is in it is bounded.
type route struct {
	// pattern is a path as http.ServeMux takes it.
	pattern string
	handler http.Handler
	limits  limits
}

// limits bound the requests of a route. The zero value takes no body and has the time of any other answer.
type limits struct {
	// methods are those that are served; none: any.
	methods []string
	// body is how many bytes of a body are read, as they were sent; 0: a request with a body is refused. What a packed body unpacks to has the
	// same bound (unpacked), or is refused (bare).
	body int64
	// endless lifts the bound of the whole body, for one that is read in pieces which have bounds of their own; each piece has the time of
	// a body.
	endless bool
	// whole is how long the whole call may take; 0: as long as its caller reads what it is sent.
	whole time.Duration
}

// pageMethods are the methods of what is only looked at.
var pageMethods = []string{http.MethodGet, http.MethodHead}

// procedureMethods are those of Connect: GET for what changes nothing, which its handlers know.
var procedureMethods = []string{http.MethodPost, http.MethodGet}

// page makes the route of something that is only looked at.
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
		route{pattern: "/", handler: s.visited(b, b.visits, http.HandlerFunc(http.NotFound)), limits: limits{whole: healthWithin}},
	)
}

// procedures makes the routes of a schema's services: calls of callers who are known.
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

// bare are the options of handlers that anybody may call: small messages, never packed.
func bare(most int) []connect.HandlerOption {
	return []connect.HandlerOption{connect.WithReadMaxBytes(most), connect.WithCompression("gzip", nil, nil)}
}

// healthRoutes serve gRPC's health protocol.
func (s *Server) healthRoutes(b *portBudgets) []route {
	path, health := grpchealth.NewHandler(grpcHealth{s}, bare(maxHealthBody)...)
	return []route{
		{pattern: path + "Check", handler: s.judged(b, b.health, health), limits: limits{methods: procedureMethods, body: maxHealthBody, whole: healthWithin}},
		{pattern: path + "Watch", handler: s.visited(b, b.watchers, s.untilDrained(health)), limits: limits{methods: procedureMethods, body: maxHealthBody}},
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
		// Of an answer that is nothing but a header, too, the end is written within a time.
		defer func() { _ = control.SetWriteDeadline(time.Now().Add(s.config.WriteAnswer)) }()
		answer := &answerWriter{ResponseWriter: w, control: control, within: s.config.WriteAnswer, contentType: r.Header.Get("Content-Type")}
		if hasBody(r) { // also one that nobody reads: the server drops what is left of it
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

// fieldsOf counts the fields of a header, each time that one is repeated.
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

// refuse answers with a status alone when it is the turn of who asked, and does not wait for the rest of a body.
func (s *Server) refuse(b *portBudgets, w http.ResponseWriter, r *http.Request, status int) {
	turn := s.turnOfVisit(b, r)
	defer turn.Leave()
	if hasBody(r) && r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
	s.awaitRefusal(b, turn, w, r)
	http.Error(w, http.StatusText(status), status)
}
