package gateway

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/quotad/quotad/client"
)

// signOfLife is the interval of empty lines that show that slots are still held.
const signOfLife = 10 * time.Second

// serveSlots serves /slots: the lease lives as long as the connection, even while the gateway drains. The first line describes the
// lease, empty lines follow, and a last line reports its loss.
func (g *Gateway) serveSlots(w http.ResponseWriter, r *http.Request, c *call) {
	_, _, refusal, refused := c.prepareTake(r, slotsQuery)
	if !refused {
		refusal, refused = c.wrongKind(true)
	}
	if refused {
		c.refuse(w, refusal)
		return
	}
	granted, err := c.acquire(r.Context(), max(time.Until(c.until), 0))
	if err != nil {
		g.refuseTake(w, c, err)
		return
	}
	lease := granted.lease
	if lease.Operation() != nil { // a quota that was not listed yet was consumed, so it is no slot
		granted.settle(settlement{unsent: true})
		c.refuse(w, refusedKind(c.draws[0], true))
		return
	}
	defer granted.handOver()
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(w)
	control := http.NewResponseController(w)
	write := func(value any) error {
		if value == nil {
			if _, err := w.Write([]byte("\n")); err != nil {
				return err
			}
		} else if err := out.Encode(value); err != nil {
			return err
		}
		return control.Flush()
	}
	first := map[string]any{"lease": strconv.FormatUint(lease.ID(), 10), "fence": strconv.FormatUint(lease.Fence(), 10)}
	if member := lease.Member(); member != "" {
		first["member"] = member
	}
	if forecast := lease.Forecast(); forecast != nil {
		first["forecast"] = predicted(forecast)
	}
	err = write(first)
	alive := time.NewTicker(signOfLife)
	defer alive.Stop()
	for err == nil {
		select {
		case <-alive.C:
			err = write(nil)
		case <-lease.Done():
			_ = write(map[string]string{"lost": lostBy(lease)})
			return
		case <-r.Context().Done():
			return
		}
	}
}

func lostBy(lease *client.Lease) string {
	if err := lease.Err(); err != nil {
		return err.Error()
	}
	return "the lease has ended"
}
