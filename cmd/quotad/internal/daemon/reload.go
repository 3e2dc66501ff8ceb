package daemon

import (
	"context"
	"crypto/x509"
	"net"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
)

// reload reloads tokens, certificates and the log level. If a file does not load, it logs that and keeps the old state: a
// mistake in a file must not stop a running node. All other settings need a restart.
func (p *process) reload() {
	p.notify(daemon.SdNotifyReloading)
	defer p.notify(daemon.SdNotifyReady)
	var read []any
	whole := true
	report := func(what string, value any, err error) {
		if err != nil {
			p.logger.Error("reload failed: the old files stay in use", "what", what, "error", err)
			whole = false
			return
		}
		read = append(read, what, value)
	}
	loaded, err := p.options.Load()
	if err != nil {
		p.logger.Error("reload failed: the configuration has mistakes; the old one stays in use", "error", err)
		whole = false
	} else {
		p.logger.SetLevel(hclog.LevelFromString(loaded.Config.Log.Level))
		report("log.level", loaded.Config.Log.Level, nil)
		if !loaded.Config.Same(p.config) {
			p.logger.Warn("reload: some changed settings need a restart; only log.level, tokens and certificates are reloaded")
		}
	}
	if p.tokens != nil {
		err := p.tokens.Reload()
		report("tokens", p.tokens.Len(), err)
		p.warnOfNoTokens()
	}
	if p.apiCertificates != nil {
		report("api certificates", "read", p.apiCertificates.reload())
		p.checkCallers()
		p.api.CheckPeerTLS()
	}
	if p.raftCertificates != nil {
		report("raft certificates", "read", p.raftCertificates.reload())
		p.node.CheckPeerTLS()
	}
	p.warnOfExpiry()
	if whole {
		p.logger.Info("reloaded", read...)
		return
	}
	p.logger.Warn("reloaded in part: the errors are above", read...)
}

// checkCallers closes the connections of callers whose certificates no current CA signs.
func (p *process) checkCallers() {
	pool := p.apiCertificates.now.Load().pool
	if pool == nil {
		return
	}
	p.callers.Judge(pool, x509.ExtKeyUsageClientAuth, func(address net.Addr, reason error) {
		p.logger.Warn("closing a caller's connection", "address", address, "reason", reason)
	})
}

// warnOfNoTokens warns of a file that admits nobody.
func (p *process) warnOfNoTokens() {
	if p.tokens != nil && p.tokens.Len() == 0 {
		p.logger.Warn("the tokens_file has no token: every caller is refused", "tokens_file", p.config.TokensFile)
	}
}

// expiryWarning is how long before its expiry the log warns of a certificate.
const expiryWarning = 30 * 24 * time.Hour

func (p *process) warnOfExpiry() {
	for what, files := range map[string]*certificates{"api": p.apiCertificates, "raft": p.raftCertificates} {
		if files == nil {
			continue
		}
		if end := files.expires(); !end.IsZero() && time.Until(end) < expiryWarning {
			p.logger.Warn("a certificate expires soon", "port", what, "not_after", end)
		}
	}
}

// registerExpiry adds the metric of each certificate's remaining lifetime.
func (p *process) registerExpiry(registry *prometheus.Registry) {
	for port, files := range map[string]*certificates{"api": p.apiCertificates, "raft": p.raftCertificates} {
		if files == nil {
			continue
		}
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "quotad", Name: "certificate_expiry_seconds", Help: "Time until the certificate of a port expires.",
			ConstLabels: prometheus.Labels{"port": port},
		}, func() float64 { return time.Until(files.expires()).Seconds() }))
	}
}

// notify notifies systemd, if systemd started this process.
func (p *process) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		p.logger.Warn("cannot notify systemd", "state", state, "error", err)
	}
}

// feedWatchdog notifies systemd's watchdog while the node's own checks of process and disk pass.
func (p *process) feedWatchdog(ctx context.Context) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil || interval == 0 {
		return
	}
	ticker := time.NewTicker(interval / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		alive := true
		for _, check := range p.node.Checks() {
			// A restart does not fix a missing leader or a full disk; it does fix a stuck process.
			if (check.Name == "running" || check.Name == "disk" || check.Name == "applied") && !check.OK {
				alive = false
			}
		}
		if alive {
			p.notify(daemon.SdNotifyWatchdog)
		}
	}
}
