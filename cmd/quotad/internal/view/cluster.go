package view

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// Node is a node to query.
type Node struct {
	// ID is the node's name.
	ID    string
	Admin quotav1connect.AdminServiceClient
	Quota quotav1connect.QuotaServiceClient
}

// Cluster is the state of a cluster according to its nodes.
type Cluster struct {
	// IDs are the nodes' names.
	IDs []string
	// Nodes are their roles, by position: leader, follower and so on; Down for a node that does not answer.
	Nodes []string
	// Leader is the position of the leader; -1: unknown.
	Leader int
	Term   uint64
	// Leases is the number of live leases, Waiting that of waiting Reserves.
	Leases, Waiting int64
	// Status is the status of the leader, or else of another node; nil: no node answers.
	Status *quotav1.GetStatusResponse
	Quotas []*quotav1.QuotaStatus
}

// Down is the role of a node that does not answer.
const Down = "down"

// ObserveTimeout bounds each request to a node.
const ObserveTimeout = 400 * time.Millisecond

// Observe queries the status of all nodes, and the quotas whose names start with the prefix. If several nodes believe that
// they lead, the one with the highest term counts.
func Observe(ctx context.Context, nodes []Node, prefix string) Cluster {
	v := Cluster{IDs: make([]string, len(nodes)), Nodes: make([]string, len(nodes)), Leader: -1}
	answers := make([]*quotav1.GetStatusResponse, len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		v.IDs[i] = n.ID
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, ObserveTimeout)
			defer cancel()
			answers[i], _ = n.Admin.GetStatus(ctx, &quotav1.GetStatusRequest{}) // no answer: down
		})
	}
	all.Wait()
	for i, status := range answers {
		if status == nil {
			v.Nodes[i] = Down
			continue
		}
		v.Nodes[i] = status.GetRole()
		if term := status.GetMeta().GetTerm(); status.GetRole() == "leader" && (v.Leader < 0 || term > v.Term) {
			v.Leader, v.Term = i, term
			v.Leases, v.Waiting, v.Status = status.GetLeases(), status.GetWaiting(), status
		}
		if v.Status == nil || v.Leader < 0 && v.Status.GetLeader() == "" {
			v.Leases, v.Waiting, v.Status = status.GetLeases(), status.GetWaiting(), status
		}
	}
	v.Quotas = observeQuotas(ctx, nodes, v, prefix)
	return v
}

// observeQuotas reads the leader's applied state. If the leader is not among the nodes, it queries another node, which
// forwards to the leader.
func observeQuotas(ctx context.Context, nodes []Node, v Cluster, prefix string) []*quotav1.QuotaStatus {
	ctx, cancel := context.WithTimeout(ctx, ObserveTimeout)
	defer cancel()
	request := &quotav1.ListQuotasRequest{Prefix: prefix, Read: quotav1.ReadMode_READ_MODE_STALE}
	from := v.Leader
	if from < 0 {
		request.Read = quotav1.ReadMode_READ_MODE_UNSPECIFIED
		from = slices.IndexFunc(v.Nodes, func(role string) bool { return role != Down })
	}
	if from < 0 {
		return nil
	}
	request.PageSize = quotaPage
	var all []*quotav1.QuotaStatus
	for {
		page, err := nodes[from].Quota.ListQuotas(ctx, request)
		if err != nil {
			return nil // the next picture tries again
		}
		all = append(all, page.GetQuotas()...)
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return all
		}
	}
}

// quotaPage is how many quotas are read in one request, the most that a node sends.
const quotaPage = 1_000

// Line describes the nodes and their load in one line.
func (v Cluster) Line() string {
	var words []string
	for i, role := range v.Nodes {
		if i == v.Leader {
			role = fmt.Sprintf("LEADER (term %d)", v.Term)
		} else if role == "leader" {
			role = "leader, deposed"
		}
		words = append(words, v.IDs[i]+" "+role)
	}
	return fmt.Sprintf("cluster         %s   leases %d   waiting %d", strings.Join(words, "   "), v.Leases, v.Waiting)
}

// QuotaTable describes the quotas, one row each.
func (v Cluster) QuotaTable() string {
	if len(v.Quotas) == 0 {
		return "no leader: calls wait, and spend what they have consumed\n"
	}
	var out strings.Builder
	rows := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "quota\tzone\tusable\theld\tconsumed\tavailable\twaiting\tleases\tends in\tclosed for")
	for _, q := range v.Quotas {
		fmt.Fprintf(rows, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", output.Visible(q.GetDefinition().GetName()), zoneWord(q.GetZone()),
			q.GetUsable(), q.GetHeld(), q.GetConsumed(), q.GetAvailable(), q.GetWaiting(), q.GetLeases(),
			seconds(q.GetWindowClosesIn()), closedFor(q))
	}
	_ = rows.Flush() // into memory
	return out.String()
}

// zoneWord formats a zone: green.
func zoneWord(zone quotav1.Zone) string {
	if zone == quotav1.Zone_ZONE_UNSPECIFIED {
		return output.Dash
	}
	return strings.ToLower(strings.TrimPrefix(zone.String(), "ZONE_"))
}

func seconds(d *durationpb.Duration) string {
	if d == nil {
		return output.Dash
	}
	return fmt.Sprintf("%.0f s", d.AsDuration().Seconds())
}

// closedFor says why and for how long a quota is not fully open.
func closedFor(q *quotav1.QuotaStatus) string {
	switch {
	case q.GetCooldownLeft() != nil:
		return seconds(q.GetCooldownLeft())
	case q.GetReopensIn() != nil:
		return "reopening, " + seconds(q.GetReopensIn())
	case len(q.GetBrokenHolders()) > 0:
		return fmt.Sprintf("%d holders", len(q.GetBrokenHolders()))
	}
	return output.Dash
}
