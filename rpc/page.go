package rpc

import "google.golang.org/protobuf/proto"

// maxPageBytes ends a page of a list, encoded, at the record that reaches it. A lease of 64 items has about 10 KB.
const maxPageBytes = 512 << 10

// pageSize returns the maximum number of records of a page.
func pageSize(asked int32) int {
	if asked == 0 {
		return 100
	}
	return int(asked)
}

// pageOf makes a page of the first records. Large records end it early: the next page begins after the last one in it.
func pageOf[V any, M proto.Message](records []V, record func(*V) M) (page []M) {
	for i, size := 0, 0; i < len(records) && size < maxPageBytes; i++ {
		page = append(page, record(&records[i]))
		size += proto.Size(page[i])
	}
	return page
}
