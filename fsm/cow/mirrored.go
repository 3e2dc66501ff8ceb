package cow

import "fmt"

// Mirrored returns an error where a table that finds the objects of another one has not as many places as there are objects that belong
// into it.
func Mirrored(what string, objects, places int) error {
	if objects != places {
		return fmt.Errorf("%d %s, %d places", objects, what, places)
	}
	return nil
}
