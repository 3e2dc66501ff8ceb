package entry

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// VersionOf returns the lowest version of entries that knows every field set in some commands. A node that applies
// lower versions only would panic on them, so they are not proposed while the cluster has such a member.
func VersionOf(commands []*logpb.Command) (version uint32) {
	version = levels.Oldest
	for _, command := range commands {
		version = max(version, versionOf(command.ProtoReflect()))
	}
	return version
}

// versionOf is VersionOf for a message; 0: every version knows all of it.
func versionOf(message protoreflect.Message) (version uint32) {
	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if !message.Has(field) {
			continue
		}
		version = max(version, SinceOf(field))
		switch value := message.Get(field); {
		case field.Kind() != protoreflect.MessageKind:
		case field.IsList():
			for k := range value.List().Len() {
				version = max(version, versionOf(value.List().Get(k).Message()))
			}
		default:
			version = max(version, versionOf(value.Message()))
		}
	}
	return version
}

// SinceOf returns the first version that knows a field; 0: every version does.
func SinceOf(field protoreflect.FieldDescriptor) uint32 {
	since, _ := proto.GetExtension(field.Options(), logpb.E_Since).(uint32)
	return since
}
