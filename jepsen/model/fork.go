package model

import (
	"reflect"
	"sync"

	"github.com/huandu/go-clone"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/quotad/quotad/fsm/logpb"
)

// messagesAreShared makes the cloner share messages of the log, once: a judge never changes them.
var messagesAreShared = sync.OnceFunc(func() {
	var share func(all protoreflect.MessageDescriptors)
	share = func(all protoreflect.MessageDescriptors) {
		for i := range all.Len() {
			if message, err := protoregistry.GlobalTypes.FindMessageByName(all.Get(i).FullName()); err == nil {
				clone.MarkAsOpaquePointer(reflect.TypeOf(message.Zero().Interface()))
			}
			share(all.Get(i).Messages())
		}
	}
	share(logpb.File_quotad_log_v1_log_proto.Messages())
})

// Fork returns a judge with a copy of the books. A restore continues from the books of its backup, while the original judges the entries
// between backup and restore.
func (j *Judge) Fork() *Judge {
	messagesAreShared()
	books := *j
	books.entry = entry{index: j.entry.index} // the last entry is not judged again
	return clone.Slowly(&books).(*Judge)      //nolint:errcheck // a clone has the type of what was cloned
}
