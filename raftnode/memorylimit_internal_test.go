package raftnode

import (
	"errors"
	"testing"
	"testing/fstest"
)

// TestMemoryLimitOf_IsSmallest: the smallest limit applies: of the process's control group, of those around it, or of the machine, in both
// versions of control groups. Unreadable or non-numeric limits are ignored.
func TestMemoryLimitOf_IsSmallest(t *testing.T) {
	const gib = 1 << 30
	machine := map[string]string{"proc/meminfo": "MemTotal:        8388608 kB\nMemFree: 1 kB\n"}
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no control groups": {nil, 8 * gib},
		"version 2": {map[string]string{
			"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/memory.max": "1073741824\n",
		}, gib},
		"version 2, without a limit": {map[string]string{
			"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/memory.max": "max\n",
		}, 8 * gib},
		"version 2, a parent has less": {map[string]string{
			"proc/self/cgroup": "0::/pod/app\n", "sys/fs/cgroup/pod/app/memory.max": "4294967296\n", "sys/fs/cgroup/pod/memory.max": "2147483648\n",
		}, 2 * gib},
		"version 2, the parent alone has one": {map[string]string{
			"proc/self/cgroup": "0::/pod/app\n", "sys/fs/cgroup/pod/app/memory.max": "max\n", "sys/fs/cgroup/pod/memory.max": "2147483648\n",
		}, 2 * gib},
		"version 2, seen from inside": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1073741824\n",
		}, gib},
		"version 2, more than the machine": {map[string]string{
			"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/memory.max": "1099511627776\n",
		}, 8 * gib},
		"version 1": {map[string]string{
			"proc/self/cgroup": "5:cpu,cpuacct:/app\n4:memory:/app\n",
			"sys/fs/cgroup/memory/app/memory.limit_in_bytes": "1073741824\n", "sys/fs/cgroup/app/memory.max": "1\n",
		}, gib},
		"version 1, memory with others": {map[string]string{
			"proc/self/cgroup": "4:hugetlb,memory:/a/b\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "3221225472\n",
			"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
		}, 3 * gib},
		"both versions": {map[string]string{
			"proc/self/cgroup": "4:memory:/old\n0::/new\n", "sys/fs/cgroup/memory/old/memory.limit_in_bytes": "3221225472\n",
			"sys/fs/cgroup/new/memory.max": "2147483648\n",
		}, 2 * gib},
		"what cannot be read": {map[string]string{"proc/self/cgroup": "0::/app\n"}, 8 * gib},
		"what is no number":   {map[string]string{"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/memory.max": "lots\n"}, 8 * gib},
		"what is no group":    {map[string]string{"proc/self/cgroup": "nonsense\n", "sys/fs/cgroup/memory.max": "1\n"}, 8 * gib},
		"another control only": {
			map[string]string{"proc/self/cgroup": "4:cpu:/app\n", "sys/fs/cgroup/memory/app/memory.limit_in_bytes": "1\n"},
			8 * gib,
		},
	} {
		t.Run(name, func(t *testing.T) {
			system := fstest.MapFS{}
			for _, files := range []map[string]string{machine, c.files} {
				for path, text := range files { // in any order
					system[path] = &fstest.MapFile{Data: []byte(text)}
				}
			}
			if got, err := memoryLimitOf(system); err != nil || got != c.want {
				t.Errorf("%d bytes, %v; want %d", got, err, c.want)
			}
		})
	}
	if limit, err := memoryLimitOf(fstest.MapFS{}); !errors.Is(err, errNoMemoryLimit) {
		t.Errorf("of nothing: %d %v", limit, err)
	}
}
