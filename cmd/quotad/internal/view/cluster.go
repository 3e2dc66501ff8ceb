package view

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// Node is one to look at.
type Node struct {
	// ID is its name.
	ID    string
	Admin quotav1connect.AdminServiceClient
	Quota quotav1connect.QuotaServiceClient
}

// Cluster is what the nodes of a cluster say.
type Cluster struct {
	// IDs are the nodes' names.
	IDs []string
	// Nodes are their roles, by position: leader, follower and so on; Down where none answers.
	Nodes []string
	// Leader is the position of the leader, -1 where none is known.
	Leader int
	Term   uint64
	// Leases and Waiting are how many leases live and Reserves wait.
	Leases, Waiting int64
	Quotas          []*quotav1.QuotaStatus
}

// Down is the role of a node that does not answer.
const Down = "down"

// LookTimeout bounds one look at one node.
const LookTimeout = 400 * time.Millisecond

// Look asks all nodes how they are. Of several that think that they lead, the one with the highest term does.
func Look(ctx context.Context, nodes []Node) Cluster {
	v := Cluster{IDs: make([]string, len(nodes)), Nodes: make([]string, len(nodes)), Leader: -1}
	answers := make([]*quotav1.GetStatusResponse, len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		v.IDs[i] = n.ID
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, LookTimeout)
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
			v.Leases, v.Waiting = status.GetLeases(), status.GetWaiting()
		}
	}
	if v.Leader >= 0 {
		ctx, cancel := context.WithTimeout(ctx, LookTimeout)
		defer cancel()
		request := &quotav1.ListQuotasRequest{Read: quotav1.ReadMode_READ_MODE_STALE}
		if list, err := nodes[v.Leader].Quota.ListQuotas(ctx, request); err == nil {
			v.Quotas = list.GetQuotas()
		}
	}
	return v
}

// Line tells of the nodes and of what they hold in one line.
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

// QuotaTable tells of the quotas, a row each.
func (v Cluster) QuotaTable() string {
	if len(v.Quotas) == 0 {
		return "no leader: calls wait, and spend what they have consumed\n"
	}
	var out strings.Builder
	rows := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "quota\tusable\theld\tconsumed\tavailable\twaiting\tleases\tends in")
	for _, q := range v.Quotas {
		ends := "-"
		if q.GetWindowClosesIn() != nil {
			ends = fmt.Sprintf("%.0f s", q.GetWindowClosesIn().AsDuration().Seconds())
		}
		fmt.Fprintf(rows, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", q.GetDefinition().GetName(), q.GetUsable(), q.GetHeld(), q.GetConsumed(),
			q.GetAvailable(), q.GetWaiting(), q.GetLeases(), ends)
	}
	_ = rows.Flush() // into memory
	return out.String()
}
