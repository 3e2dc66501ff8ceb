//go:build linux

package disk

import (
	"context"
	"path/filepath"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// node is a file or directory.
type node struct {
	fs.LoopbackNode
	disk *Disk
}

var (
	_ fs.NodeOpener         = (*node)(nil)
	_ fs.NodeCreater        = (*node)(nil)
	_ fs.NodeSetattrer      = (*node)(nil)
	_ fs.NodeStatfser       = (*node)(nil)
	_ fs.NodeCopyFileRanger = (*node)(nil)
	_ fs.NodeUnlinker       = (*node)(nil)
	_ fs.NodeWrapChilder    = (*node)(nil)
)

// WrapChild implements fs.NodeWrapChilder: children of the directory are of this type too.
func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	if inner, ok := ops.(*fs.LoopbackNode); ok {
		return &node{LoopbackNode: fs.LoopbackNode{RootData: inner.RootData}, disk: n.disk}
	}
	return ops
}

// path is the path of the file in the backing directory.
func (n *node) path() string { return filepath.Join(n.RootData.Path, n.Path(n.Root())) }

// Open implements fs.NodeOpener.
func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	inner, fuseFlags, errno := n.LoopbackNode.Open(ctx, flags&^uint32(syscall.O_TRUNC|syscall.O_APPEND))
	if errno != 0 {
		return nil, 0, errno
	}
	if flags&syscall.O_TRUNC != 0 {
		if errno := n.truncate(0); errno != 0 {
			return nil, 0, errno
		}
	}
	return n.handle(inner), fuseFlags, 0
}

// Create implements fs.NodeCreater.
func (n *node) Create(
	ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut,
) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	inode, inner, fuseFlags, errno := n.LoopbackNode.Create(ctx, name, flags&^uint32(syscall.O_APPEND), mode, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	child, ok := inode.Operations().(*node)
	if !ok {
		return nil, nil, 0, syscall.EIO
	}
	return inode, child.handle(inner), fuseFlags, 0
}

func (n *node) handle(inner fs.FileHandle) fs.FileHandle {
	if loopback, ok := inner.(*fs.LoopbackFile); ok {
		return &file{node: n, inner: loopback}
	}
	return inner
}

// Setattr implements fs.NodeSetattrer. A change of size can be lost.
func (n *node) Setattr(ctx context.Context, handle fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok {
		if errno := n.truncate(int64(size)); errno != 0 {
			return errno
		}
		in.Valid &^= fuse.FATTR_SIZE
	}
	return n.LoopbackNode.Setattr(ctx, inner(handle), in, out)
}

// Getattr implements fs.NodeGetattrer.
func (n *node) Getattr(ctx context.Context, handle fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	return n.LoopbackNode.Getattr(ctx, inner(handle), out)
}

func inner(handle fs.FileHandle) fs.FileHandle {
	if f, ok := handle.(*file); ok {
		return f.inner
	}
	return handle
}

// truncate changes the size and remembers the removed content.
func (n *node) truncate(size int64) syscall.Errno {
	d := n.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	f, err := d.openLocked(n.StableAttr().Ino, n.path())
	if err != nil {
		return fs.ToErrno(err)
	}
	if err := f.remember(size, 1<<62); err != nil {
		return fs.ToErrno(err)
	}
	f.written = min(f.written, size)
	return fs.ToErrno(f.file.Truncate(size))
}

// Unlink implements fs.NodeUnlinker.
func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	if child := n.GetChild(name); child != nil {
		n.disk.mu.Lock()
		n.disk.forgetLocked(child.StableAttr().Ino)
		n.disk.mu.Unlock()
	}
	return n.LoopbackNode.Unlink(ctx, name)
}

// Statfs implements fs.NodeStatfser: it reports a full disk.
func (n *node) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	errno := n.LoopbackNode.Statfs(ctx, out)
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if n.disk.full >= 0 && out.Bsize > 0 {
		blocks := uint64(n.disk.full) / uint64(out.Bsize)
		out.Bfree, out.Bavail = min(out.Bfree, blocks), min(out.Bavail, blocks)
	}
	return errno
}

// CopyFileRange implements fs.NodeCopyFileRanger: it fails, since a copy would bypass the record of unsynced data.
func (n *node) CopyFileRange(
	context.Context, fs.FileHandle, uint64, *fs.Inode, fs.FileHandle, uint64, uint64, uint64,
) (uint32, syscall.Errno) {
	return 0, syscall.ENOTSUP
}

// file is an open file. It hides other abilities of inner, above all those by which the kernel would bypass Write.
type file struct {
	node  *node
	inner *fs.LoopbackFile
}

var (
	_ fs.FileReader   = (*file)(nil)
	_ fs.FileWriter   = (*file)(nil)
	_ fs.FileFsyncer  = (*file)(nil)
	_ fs.FileFlusher  = (*file)(nil)
	_ fs.FileReleaser = (*file)(nil)
)

// Read implements fs.FileReader.
func (f *file) Read(ctx context.Context, dest []byte, offset int64) (fuse.ReadResult, syscall.Errno) {
	return f.inner.Read(ctx, dest, offset)
}

// Write implements fs.FileWriter.
func (f *file) Write(ctx context.Context, data []byte, offset int64) (uint32, syscall.Errno) {
	d := f.node.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts.Writes++
	u, err := d.openLocked(f.node.StableAttr().Ino, f.node.path())
	if err != nil {
		return 0, fs.ToErrno(err)
	}
	end := offset + int64(len(data))
	if !d.takeLocked(end - u.written) {
		return 0, syscall.ENOSPC
	}
	u.written = max(u.written, end)
	if err := u.remember(offset, int64(len(data))); err != nil {
		return 0, fs.ToErrno(err)
	}
	return f.inner.Write(ctx, data, offset)
}

// Fsync implements fs.FileFsyncer.
func (f *file) Fsync(ctx context.Context, _ uint32) syscall.Errno {
	d := f.node.disk
	ino := f.node.StableAttr().Ino
	d.mu.Lock()
	u := d.files[ino]
	var upTo int
	if u != nil {
		upTo = len(u.before)
	}
	d.mu.Unlock()
	errno := d.sync(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	if u == nil || d.files[ino] != u {
		return errno
	}
	later := append([]change(nil), u.before[min(upTo, len(u.before)):]...)
	u.before = u.before[:min(upTo, len(u.before))]
	if errno != 0 {
		u.fail()
	} else {
		u.synced()
	}
	u.before = append(u.before, later...)
	return errno
}

// Flush implements fs.FileFlusher.
func (f *file) Flush(ctx context.Context) syscall.Errno { return f.inner.Flush(ctx) }

// Release implements fs.FileReleaser.
func (f *file) Release(ctx context.Context) syscall.Errno { return f.inner.Release(ctx) }
