package cli

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/rpc/quotav1"
)

// chunkBytes is the size of a chunk of a backup; the server takes at most 1 MiB.
const chunkBytes = 256 << 10

// transferPatience bounds the transfer of the whole state.
const transferPatience = time.Hour

// backupResult is the output of backup.
type backupResult struct {
	File   string `json:"file"`
	Index  uint64 `json:"index"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

func (a *App) backupCommand() *cobra.Command {
	var path, dir string
	var force bool
	cmd := &cobra.Command{
		Use:   "backup -o FILE",
		Short: "Write a backup of the whole state to a file",
		Long: `Write a backup of the whole state: quotas, leases, operations, sessions. The cluster keeps running. The file gets its
name only after it is complete, synced and verified.

With --data-dir the command reads a stopped node's data directory instead of asking a cluster. Use it after the permanent
loss of a majority: take the directory with the highest index ("quotad verify"). It lacks what only the lost nodes had.`,
		Example: `  quotad backup -o quotad-$(date +%F).backup
  quotad backup --data-dir /var/lib/quotad -o rescued.backup
  quotad verify quotad-2026-01-31.backup`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return usagef(cmd, "", "-o FILE is missing")
			}
			if _, err := os.Stat(path); err == nil && !force {
				return fail(ExitUsage, "--force overwrites it", "%s exists", path)
			}
			fill := func(file *os.File) (*backupResult, error) { return rescue(dir, file) }
			if dir == "" {
				c, err := a.connect(cmd)
				if err != nil {
					return err
				}
				fill = func(file *os.File) (*backupResult, error) {
					return call(cmd.Context(), c, reads, transferPatience, func(ctx context.Context, n node) (*backupResult, error) {
						return receive(ctx, n, file)
					})
				}
			}
			result, err := backup(path, fill)
			if err != nil {
				return err
			}
			if a.format == formatJSON {
				return output.Value(a.Out, result)
			}
			_, err = fmt.Fprintf(a.Out, "%s: %d bytes, index %d, sha256 %s\n", output.Visible(path), result.Bytes, result.Index, result.SHA256)
			return err
		},
	}
	cmd.Flags().StringVarP(&path, "file", "o", "", "file to write")
	cmd.Flags().StringVar(&dir, "data-dir", "", "read a stopped node's data directory instead of asking a cluster")
	cmd.Flags().BoolVar(&force, "force", false, "overwrite the file")
	return a.clientFlags(cmd)
}

// backup lets fill write to a temporary file next to path, and renames it at the end.
func backup(path string, fill func(*os.File) (*backupResult, error)) (*backupResult, error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = file.Close()
		_ = os.Remove(file.Name()) // after a rename the file is gone already
	}()
	result, err := fill(file)
	if err != nil {
		return nil, err
	}
	if err := verifyWritten(file); err != nil {
		return nil, fmt.Errorf("the written backup is damaged: %w", err)
	}
	if err := file.Sync(); err != nil {
		return nil, err
	}
	if err := file.Close(); err != nil { // an open file cannot be renamed everywhere
		return nil, err
	}
	if err := renameDurably(file.Name(), path); err != nil {
		return nil, err
	}
	result.File = path
	return result, nil
}

// rescue writes the state of a stopped node's data directory to the file.
func rescue(dir string, file *os.File) (*backupResult, error) {
	if _, err := summarizeDir(dir); err != nil { // read all of it first, and apply nothing if a part is unreadable
		return nil, err
	}
	offline, err := openOffline(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = offline.Close() }()
	state, err := offline.State()
	if err != nil {
		return nil, damaged(dir, err, ofANode)
	}
	if state.ClusterID() == "" {
		return nil, fail(ExitNotFound, "", "%s has no state of a cluster", dir)
	}
	sum := sha256.New()
	if err := state.WriteSnapshot(io.MultiWriter(file, sum)); err != nil {
		return nil, err
	}
	size, err := file.Seek(0, io.SeekCurrent)
	return &backupResult{Index: state.Index(), Bytes: size, SHA256: hex.EncodeToString(sum.Sum(nil))}, err
}

// receive writes one node's stream to the file, from its start.
func receive(ctx context.Context, n node, file *os.File) (*backupResult, error) {
	if err := file.Truncate(0); err != nil {
		return nil, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	stream, err := n.admin.Backup(ctx, &quotav1.BackupRequest{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	sum, result := sha256.New(), &backupResult{}
	for stream.Receive() {
		piece := stream.Msg()
		if _, err := file.Write(piece.Chunk); err != nil {
			return nil, err
		}
		_, _ = sum.Write(piece.Chunk) // a hash never fails
		result.Bytes += int64(len(piece.Chunk))
		result.Index = max(result.Index, piece.Index)
	}
	result.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return result, stream.Err()
}

func verifyWritten(file *os.File) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return fsm.VerifySnapshot(bufio.NewReaderSize(file, 1<<20))
}

func (a *App) restoreCommand() *cobra.Command {
	var path string
	var yes, fromOther bool
	cmd := &cobra.Command{
		Use:   "restore -i FILE --yes",
		Short: "Replace the cluster's state with a backup and raise the fence epoch",
		Long: `Replace the state of the running cluster with a backup. Everything since the backup is lost: stop all holders first,
and wait until the provider no longer counts what they consumed since then. The restore raises the fence epoch, so no
fence is issued twice: leases granted since the backup are dead; leases in the backup are live until they end.

The command verifies the file before it sends anything. It refuses a backup of another cluster without
--from-other-cluster, which you need when a new cluster replaces a lost one.`,
		Example: `  quotad restore -i quotad-2026-01-31.backup --yes`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case path == "":
				return usagef(cmd, "", "-i FILE is missing")
			case !yes:
				return usagef(cmd, "stop all holders, then add --yes", "a restore loses everything since the backup")
			}
			if _, err := summarize(path); err != nil {
				return err
			}
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			answer, err := call(cmd.Context(), c, ifNotAccepted, transferPatience, func(
				ctx context.Context, n node,
			) (*quotav1.RestoreResponse, error) {
				return send(ctx, n, path, fromOther)
			})
			if err != nil {
				return err
			}
			if a.format == formatJSON {
				return output.JSON(a.Out, answer)
			}
			_, err = fmt.Fprintf(a.Out, "restored %s at index %d; the fence epoch is now %d\n",
				output.Visible(path), answer.Meta.GetIndex(), answer.Epoch)
			return err
		},
	}
	cmd.Flags().StringVarP(&path, "in", "i", "", "backup to restore")
	cmd.Flags().BoolVar(&fromOther, "from-other-cluster", false, "allow a backup of another cluster")
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm the loss of everything since the backup")
	return a.clientFlags(cmd)
}

func send(ctx context.Context, n node, path string, fromOther bool) (*quotav1.RestoreResponse, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	stream, err := n.admin.Restore(ctx)
	if err != nil {
		return nil, err
	}
	chunk := make([]byte, chunkBytes)
	for {
		count, err := io.ReadFull(file, chunk)
		if count > 0 {
			if sendErr := stream.Send(&quotav1.RestoreRequest{Chunk: chunk[:count], FromOtherCluster: fromOther}); errors.Is(sendErr, io.EOF) {
				break // the node has answered already; CloseAndReceive returns its answer
			} else if sendErr != nil {
				return nil, sendErr
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	answer, err := stream.CloseAndReceive()
	if err != nil {
		return nil, err
	}
	return answer, nil
}
