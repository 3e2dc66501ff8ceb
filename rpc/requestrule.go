package rpc

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// requestRule is the check of one type of requests.
type requestRule struct {
	name  protoreflect.Name
	check func(*checker, proto.Message)
}

// rule makes a requestRule of a typed check.
func rule[T proto.Message](check func(*checker, T)) requestRule {
	var request T
	return requestRule{request.ProtoReflect().Descriptor().Name(), func(c *checker, m proto.Message) {
		if typed, ok := m.(T); ok {
			check(c, typed)
		}
	}}
}

func tableOf(all ...requestRule) map[protoreflect.Name]func(*checker, proto.Message) {
	table := make(map[protoreflect.Name]func(*checker, proto.Message), len(all))
	for _, r := range all {
		table[r.name] = r.check
	}
	return table
}
