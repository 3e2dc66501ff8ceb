package logstore_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/logstore"
)

// TestBlank_AloneIsNew: a log store with a name and no content is what an interrupted first start leaves. Such a directory counts as new.
// If it has other data of a node, the store's content was lost.
func TestBlank_AloneIsNew(t *testing.T) {
	logstore.BothStores(t, func(t *testing.T, s logstore.Kind) {
		file := s.Path("")
		if s == logstore.WAL {
			file = filepath.Join(file, logstore.WALMetaFile)
		}
		for name, content := range map[string][]byte{"empty": nil, "zeros": make([]byte, 16<<10)} {
			for also, lost := range map[string]bool{"": false, logstore.NodeFile: true, logstore.ClusterFile: true, logstore.FormedFile: true} {
				t.Run(name+" "+also, func(t *testing.T) {
					conf := raftnode.DefaultConfig()
					conf.ID, conf.RaftAddress, conf.DataDir, conf.LogStore = "n0", "127.0.0.1:0", t.TempDir(), s
					path := filepath.Join(conf.DataDir, file)
					if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
						t.Fatal(err)
					}
					if also != "" {
						if err := os.WriteFile(filepath.Join(conf.DataDir, also), []byte("n0"), 0o600); err != nil {
							t.Fatal(err)
						}
					}
					switch err := reopens(t, conf); {
					case lost && !errors.Is(err, logstore.ErrWiped) && !errors.Is(err, logstore.ErrDamaged):
						t.Errorf("with %s it starts: %v", also, err)
					case !lost && err != nil:
						t.Errorf("it does not start: %v", err)
					}
				})
			}
		}
	})
}
