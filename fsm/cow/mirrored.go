package cow

import "fmt"

// Mirrored returns an error if an index does not have as many places as there are objects that belong in it.
func Mirrored(what string, objects, places int) error {
	if objects != places {
		return fmt.Errorf("%d %s, %d places", objects, what, places)
	}
	return nil
}
