package ledger

// Classes of priority.
const (
	ClassCritical   int32 = 0
	ClassStandard   int32 = 1
	ClassBackground int32 = 2
	Classes               = 3
)
