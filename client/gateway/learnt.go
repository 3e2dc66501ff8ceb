package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/quotad/quotad/client/estimate"
)

// Learnt figures are stored in a file, so that a restarted gateway does not estimate without history. The file has names of models and
// holders, and numbers.

const (
	// stateVersion is the format of the file.
	stateVersion = 1
	// maxState bounds how much of it is read, in bytes, above the size of all that can be learnt.
	maxState = 64 << 20
	// stateEvery is how often it is written.
	stateEvery = time.Minute
)

type learntFile struct {
	Version int               `json:"version"`
	Learnt  []estimate.Learnt `json:"learnt"`
}

// loadLearnt reads the file. A missing or unreadable file does not prevent the start.
func (g *Gateway) loadLearnt(path string) {
	if path == "" {
		return
	}
	learnt, err := readLearnt(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		g.logger.Warn("could not read the state file: the gateway learns estimates again", "path", path, "error", err)
	default:
		g.learner.Restore(learnt)
	}
}

func readLearnt(path string) ([]estimate.Learnt, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var kept learntFile
	if err := json.NewDecoder(io.LimitReader(file, maxState)).Decode(&kept); err != nil {
		return nil, err
	}
	if kept.Version != stateVersion {
		return nil, fmt.Errorf("the file has version %d; this gateway supports %d", kept.Version, stateVersion)
	}
	return kept.Learnt, nil
}

// saveLearnt replaces the file atomically.
func (g *Gateway) saveLearnt() {
	path := g.state.Load().config.State
	if path == "" || !g.learnt.Swap(false) {
		return // a gateway that only explains calls must not overwrite another one's file
	}
	if err := writeLearnt(path, g.learner.Learnt()); err != nil {
		g.learnt.Store(true) // the next save tries again
		g.logger.Warn("could not write the state file: learned estimates are lost at a restart", "path", path, "error", err)
	}
}

func writeLearnt(path string, learnt []estimate.Learnt) error {
	data, err := json.Marshal(learntFile{stateVersion, learnt})
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil { // synced first: else a power cut could leave an empty file
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}

// keepLearnt writes the file periodically.
func (g *Gateway) keepLearnt() {
	due := time.NewTicker(stateEvery)
	defer due.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-due.C:
			g.saveLearnt()
		}
	}
}
