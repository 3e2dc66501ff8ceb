package client

// fieldUsage is the use of one quota that a field of a body states.
type fieldUsage struct {
	fieldScan
	quota string
}

// fieldScan finds the last number of a field in a body as it passes: in JSON, or in the last events of a stream. It stores none of the
// body. Inside a JSON string the key's quotes would be escaped, so a model's text cannot imitate it by accident.
type fieldScan struct {
	// key is the field's name in JSON form, quoted and with its colon.
	key string
	// matched is how many bytes of the key have matched; all of them while the number is read.
	matched int
	number  int64
	digits  int
	last    int64
	found   bool
}

// scanFor returns a scan for a field.
func scanFor(field string) fieldScan { return fieldScan{key: `"` + field + `":`} }

func (u *fieldScan) scan(p []byte) {
	for _, c := range p {
		if u.matched == len(u.key) {
			switch {
			case c >= '0' && c <= '9' && u.digits < 15:
				u.number = u.number*10 + int64(c-'0')
				u.digits++
				continue
			case c == ' ' && u.digits == 0:
				continue
			}
			u.take()
		}
		switch c {
		case u.key[u.matched]:
			u.matched++
		case u.key[0]:
			u.matched = 1
		default:
			u.matched = 0
		}
	}
}

// take ends a number.
func (u *fieldScan) take() {
	if u.digits > 0 && u.digits < 15 {
		u.last, u.found = u.number, true
	}
	u.matched, u.number, u.digits = 0, 0, 0
}

// total returns the last number found.
func (u *fieldScan) total() (int64, bool) { return u.last, u.found }
