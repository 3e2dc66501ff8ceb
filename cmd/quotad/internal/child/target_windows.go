package child

import (
	"os"
	"os/exec"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// relayed are the signals that package os/signal makes of console events: Ctrl-C and Ctrl-Break are SIGINT; a closed
// window, the end of the session and a shutdown are SIGTERM. The console notifies the command as well. This process
// captures them so that it lives to report how the command ended.
var relayed = []os.Signal{syscall.SIGINT, syscall.SIGTERM}

// target is the job object of the command and of everything that it starts. Windows ends a job when its last handle is
// closed, also that of a killed process: nobody would renew the child's lease or attempt, and the next holder or attempt
// may begin.
type target struct {
	process *os.Process
	// job is 0 if none could be created; then only the command itself is ended.
	job windows.Handle
}

// prepare makes the target of a command that does not run yet. Windows has no process groups.
func prepare(*exec.Cmd, bool) *target {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return &target{}
	}
	limits := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{
		BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{LimitFlags: windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE},
	}
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits))) //nolint:gosec // the call takes a structure by its address
	if err != nil {
		_ = windows.CloseHandle(job)
		return &target{}
	}
	return &target{job: job}
}

// started puts the command into the job. Processes that the command starts before this call remain outside.
func (t *target) started(process *os.Process) {
	t.process = process
	if t.job == 0 {
		return
	}
	var assigned error
	err := process.WithHandle(func(handle uintptr) { assigned = windows.AssignProcessToJobObject(t.job, windows.Handle(handle)) })
	if err != nil || assigned != nil {
		t.close()
	}
}

// close ends the processes that the command left behind.
func (t *target) close() {
	if t.job != 0 {
		_ = windows.CloseHandle(t.job)
		t.job = 0
	}
}

// relay does nothing: the console has notified the command.
func (*target) relay(os.Signal) {}

// stop ends the command at once, with all that it started: Windows has no signal that requests an end. The exit code is
// that of SIGTERM elsewhere.
func (t *target) stop() {
	if t.job == 0 || windows.TerminateJobObject(t.job, signalBase+uint32(syscall.SIGTERM)) != nil {
		_ = t.process.Kill() // it may have ended
	}
}

func (t *target) kill() { t.stop() }
