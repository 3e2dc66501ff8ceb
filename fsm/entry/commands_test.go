package entry

import "github.com/quotad/quotad/fsm/logpb"

// tester is the common part of *testing.T and *rapid.T.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func ask(holder string, items ...*logpb.Item) *logpb.Reserve {
	return &logpb.Reserve{Holder: holder, Items: items}
}

func itemOf(name string, amount int64) *logpb.Item { return &logpb.Item{Quota: name, Amount: &amount} }

func reserve(req *logpb.Reserve) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: req}}
}

func renew(r *logpb.Renew) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Renew{Renew: r}}
}
