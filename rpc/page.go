package rpc

import "google.golang.org/protobuf/proto"

// maxPageBytes is when a page of a list ends, encoded, however many records were asked for. A lease of 64 items has some 10 KB.
const maxPageBytes = 512 << 10

// pageSize returns how many records a page has at most.
func pageSize(asked int32) int {
	if asked == 0 {
		return 100
	}
	return int(asked)
}

// pageOf makes a page of records, of fewer than there are where these are large: then the next page begins behind the last one.
func pageOf[V any, M proto.Message](records []V, record func(*V) M) (page []M) {
	for i, size := 0, 0; i < len(records) && size < maxPageBytes; i++ {
		page = append(page, record(&records[i]))
		size += proto.Size(page[i])
	}
	return page
}
