package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/rpc/quotav1"
)

func (a *App) quotaCommand() *cobra.Command {
	return group("quota", "Apply, show and delete quotas",
		a.quotaApply(), a.quotaGet(), a.quotaList(), a.quotaOverride(), a.quotaReopen(), a.quotaDelete())
}

func (a *App) quotaApply() *cobra.Command {
	var file, from string
	var set map[string]string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE | --preset NAME[:TIER]",
		Short: "Create or change the quotas of a quotas.yaml, all or nothing",
		Long: `Create or change the quotas of a quotas.yaml, all or nothing. Quotas that the file does not name stay unchanged. Live
leases keep what they hold; after a lower limit nothing is granted until the quota fits. A list "holders:" replaces all
holder rules, a list "workflows:" all workflows; without the list they stay. A preset has the quotas of a common provider
("quotad preset list").`,
		Example: `  quotad quota apply -f quotas.yaml --dry-run
  quotad quota apply -f quotas.yaml
  quotad quota apply --preset github
  quotad quota get github/core -o yaml | quotad quota apply -f -`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case file == "" && from == "":
				return usagef(cmd, "", "-f FILE is missing")
			case file != "" && from != "":
				return usagef(cmd, "", "-f and --preset exclude each other")
			case from == "" && set != nil:
				return usagef(cmd, "", "--set is for a --preset")
			}
			read := func() (*quotafile.File, error) { return a.readQuotas(file) }
			if from != "" {
				read = func() (*quotafile.File, error) { return readPreset(from, set) }
			}
			quotas, err := read()
			if err != nil {
				return err
			}
			return a.applyQuotas(cmd, quotas, dryRun)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "quotas.yaml; - reads standard input")
	cmd.Flags().StringVar(&from, "preset", "", "preset instead of a file")
	setFlag(cmd, &set)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the changes without making them")
	_ = cmd.MarkFlagFilename("file", "yaml", "yml")
	return a.clientFlags(cmd)
}

func (a *App) applyQuotas(cmd *cobra.Command, file *quotafile.File, dryRun bool) error {
	c, err := a.connect(cmd)
	if err != nil {
		return err
	}
	request := file.Request()
	request.DryRun = dryRun
	answer, err := call(cmd.Context(), c, byNature, 0, func(ctx context.Context, n node) (*quotav1.ApplyQuotasResponse, error) {
		return n.admin.ApplyQuotas(ctx, request)
	})
	if err != nil {
		return err
	}
	if a.format == formatJSON {
		return output.JSON(a.Out, answer)
	}
	return printApplied(a.Out, answer, file, dryRun)
}

func printApplied(w io.Writer, answer *quotav1.ApplyQuotasResponse, file *quotafile.File, dryRun bool) error {
	table := output.Table{}
	for _, part := range []struct {
		word  string
		names []string
	}{{"created", answer.Created}, {"changed", answer.Changed}, {"unchanged", answer.Unchanged}} {
		for _, name := range part.names {
			table.Add(part.word, name)
		}
	}
	if file.HasHolders {
		table.Add("holder rules", output.Int(len(file.Holders)))
	}
	if file.HasWorkflows {
		table.Add("workflows", output.Int(len(file.Workflows)))
	}
	if err := table.Write(w); err != nil {
		return err
	}
	if dryRun {
		_, err := fmt.Fprintln(w, "dry run: nothing was changed")
		return err
	}
	return nil
}

// readQuotas reads a quotas.yaml from a path, or from standard input for "-".
func (a *App) readQuotas(path string) (*quotafile.File, error) {
	if path == "-" {
		data, err := io.ReadAll(a.In)
		if err != nil {
			return nil, err
		}
		return quotafile.Parse("standard input", data)
	}
	file, err := quotafile.Read(path)
	if pathErr := (*os.PathError)(nil); errors.As(err, &pathErr) {
		return nil, notReadable(err)
	}
	return file, err
}

func (a *App) quotaGet() *cobra.Command {
	var stale bool
	cmd := &cobra.Command{
		Use:   "get NAME",
		Short: "Show one quota: its definition, and its held, consumed and available amounts",
		Example: `  quotad quota get github/core
  quotad quota get github/core -o json | jq -r .available
  quotad quota get github/core -o yaml`,
		Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			request := &quotav1.GetQuotaRequest{Name: args[0], Read: readMode(stale)}
			answer, err := call(cmd.Context(), c, reads, 0, func(ctx context.Context, n node) (*quotav1.GetQuotaResponse, error) {
				return n.quota.GetQuota(ctx, request)
			})
			if err != nil {
				return err
			}
			return a.printQuota(answer.Quota)
		},
	}
	staleFlag(cmd, &stale)
	return a.clientFlags(cmd, formatYAML)
}

func staleFlag(cmd *cobra.Command, stale *bool) {
	cmd.Flags().BoolVar(stale, "stale", false, "read the state of the asked node, without the leader")
}

func readMode(stale bool) quotav1.ReadMode {
	if stale {
		return quotav1.ReadMode_READ_MODE_STALE
	}
	return quotav1.ReadMode_READ_MODE_LINEARIZABLE
}

func (a *App) printQuota(quota *quotav1.QuotaStatus) error {
	switch a.format {
	case formatJSON:
		return output.JSON(a.Out, quota)
	case formatYAML:
		text, err := quotafile.Write(&quotafile.File{Quotas: []*quotav1.Quota{quota.Definition}})
		if err != nil {
			return err
		}
		_, err = a.Out.Write(text)
		return err
	}
	table := output.Table{}
	table.Add("name", quota.Definition.Name)
	table.Add("rule", ruleText(quota.Definition))
	if over := quota.Override; over != nil {
		table.Add("override", overrideText(over))
	}
	table.Add("usable", output.Int(quota.Usable))
	table.Add("held", output.Int(quota.Held))
	table.Add("consumed", output.Int(quota.Consumed))
	table.Add("available", output.Int(quota.Available))
	for _, member := range quota.Members {
		text := fmt.Sprintf("%s: %d of %d available", member.Quota, member.Available, member.Usable)
		if member.CooldownLeft != nil {
			text += ", closed for " + output.Duration(member.CooldownLeft)
		}
		table.Add("member "+member.Name, text)
	}
	if quota.Definition.Parent != "" {
		table.Add("parent", quota.Definition.Parent)
		table.Add("available with parents", output.Int(quota.AvailableWithParents))
	}
	table.Add("leases", output.Int(quota.Leases))
	table.Add("waiting", output.Int(quota.Waiting))
	table.Add("overrun", output.Int(quota.Overrun))
	table.Add("window closes in", output.Duration(quota.WindowClosesIn))
	table.Add("cooldown left", output.Duration(quota.CooldownLeft))
	a.addPolicy(&table, quota)
	addObserved(&table, quota)
	if quota.Definition.Note != "" {
		table.Add("note", quota.Definition.Note)
	}
	return table.Write(a.Out)
}

// addObserved adds the values that the provider's answers revealed about the quota.
func addObserved(table *output.Table, quota *quotav1.QuotaStatus) {
	if quota.ObservedLimit != nil {
		table.Add("observed limit", fmt.Sprintf("%d, %s ago", *quota.ObservedLimit, output.Duration(quota.ObservedAgo)))
	}
	if quota.Others > 0 || quota.KeptForOthers > 0 {
		table.Add("others use", fmt.Sprintf("%d, %d kept for them", quota.Others, quota.KeptForOthers))
	}
	if quota.CappedTo != nil {
		table.Add("capped to", output.Int(*quota.CappedTo))
	}
}

// classText describes a class's use of a quota; for a rate, the amount that one call of it could take now.
func classText(use *quotav1.ClassUse) string {
	if use.Takes != nil {
		return fmt.Sprintf("could take %d now, share %d", *use.Takes, use.Share)
	}
	return fmt.Sprintf("used %d of %d, %d kept", use.Used, use.Share, use.Kept)
}

func zoneWord(zone quotav1.Zone) string {
	return strings.ToLower(strings.TrimPrefix(zone.String(), "ZONE_"))
}

// paceText says when a rate lends to lower classes.
func paceText(pacer *quotav1.Pacer) string {
	if pacer.LendsIn.AsDuration() == 0 {
		return output.Duration(pacer.Ahead) + " ahead, lends now"
	}
	return fmt.Sprintf("%s ahead, lends in %s", output.Duration(pacer.Ahead), output.Duration(pacer.LendsIn))
}

// addPolicy adds the current state of the quota's policy; nothing if it has none.
func (a *App) addPolicy(table *output.Table, quota *quotav1.QuotaStatus) {
	policy := quota.Definition.Policy
	if policy.GetZones() != quotav1.Zones_ZONES_UNSPECIFIED {
		table.Add("zone", zoneWord(quota.Zone))
	}
	for _, use := range quota.Classes {
		table.Add(quotafile.ClassWord(use.Class), classText(use))
	}
	if pacer := quota.Pacer; pacer != nil {
		table.Add("pace", paceText(pacer))
		table.Add("zone", zoneWord(pacer.Zone))
		table.Add("reserve", output.Int(pacer.Reserve))
	}
	if policy.GetRamp() != nil {
		table.Add("reopens in", output.Duration(quota.ReopensIn))
	}
	if policy.GetPrediction() != nil {
		table.Add("circuit", circuitWord(quota.Circuit))
		table.Add("forecast", forecastText(quota))
	}
	if policy.GetBreaker() != nil {
		table.Add("closed for", cmp.Or(strings.Join(quota.BrokenHolders, ", "), "nobody"))
	}
	if policy.GetObserve() {
		table.Add("would have refused", output.Int(quota.Observed))
	}
}

// ruleText describes a quota's rule in a few words: "window: 5000 per hour".
func ruleText(quota *quotav1.Quota) string {
	text := ""
	switch rule := quota.Rule.(type) {
	case *quotav1.Quota_Window:
		every := rule.Window.Every
		if length, err := strictyaml.ParseDuration(every); err == nil {
			every = strictyaml.FormatDuration(length)
		}
		text = fmt.Sprintf("window: %d per %s", rule.Window.Limit, every)
		if rule.Window.Anchor == quotav1.Anchor_ANCHOR_PROVIDER {
			text += " from the provider's reset"
		}
	case *quotav1.Quota_Rate:
		text = fmt.Sprintf("rate: %d in any %s", rule.Rate.Limit, strictyaml.FormatDuration(rule.Rate.Per.AsDuration()))
		if rule.Rate.Burst > 0 {
			text += fmt.Sprintf(", burst %d", rule.Rate.Burst)
		}
	case *quotav1.Quota_Slots:
		text = fmt.Sprintf("slots: %d at once", rule.Slots.Limit)
	case *quotav1.Quota_Pool:
		text = fmt.Sprintf("pool of %d", len(rule.Pool.Members))
		if rule.Pool.Sticky {
			text += ", sticky"
		}
	}
	if quota.Headroom > 0 {
		text += fmt.Sprintf(", headroom %g", quota.Headroom)
	}
	return text
}

// pageSize is the number of rows in one call; lists read all pages.
const pageSize = 1000

func (a *App) quotaList() *cobra.Command {
	var prefix string
	var stale bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List quotas by name",
		Long: `List quotas by name. With -o yaml and without --prefix, print the quotas, holder rules and workflows as a file for
"quotad quota apply -f".`,
		Example: `  quotad quota list
  quotad quota list --prefix openai/ -o json
  quotad quota list -o yaml > quotas.yaml`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			all, err := listQuotas(cmd.Context(), c, prefix, readMode(stale))
			if err != nil {
				return err
			}
			file := &quotafile.File{}
			if a.format == formatYAML && prefix == "" {
				if file, err = rulesAndWorkflows(cmd.Context(), c, readMode(stale)); err != nil {
					return err
				}
			}
			return a.printQuotas(all, file)
		},
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "only names with this prefix")
	staleFlag(cmd, &stale)
	return a.clientFlags(cmd, formatYAML)
}

func listQuotas(ctx context.Context, c *cluster, prefix string, mode quotav1.ReadMode) (*quotav1.ListQuotasResponse, error) {
	all := &quotav1.ListQuotasResponse{}
	request := &quotav1.ListQuotasRequest{Prefix: prefix, PageSize: pageSize, Read: mode}
	for {
		page, err := call(ctx, c, reads, 0, func(ctx context.Context, n node) (*quotav1.ListQuotasResponse, error) {
			return n.quota.ListQuotas(ctx, request)
		})
		if err != nil {
			return nil, err
		}
		all.Meta, all.Quotas = page.Meta, append(all.Quotas, page.Quotas...)
		if page.NextPageToken == "" {
			return all, nil
		}
		request.PageToken = page.NextPageToken
	}
}

// rulesAndWorkflows reads the holder rules and workflows for a file.
func rulesAndWorkflows(ctx context.Context, c *cluster, mode quotav1.ReadMode) (*quotafile.File, error) {
	request := &quotav1.ListHolderRulesRequest{Read: mode}
	rules, err := call(ctx, c, reads, 0, func(ctx context.Context, n node) (*quotav1.ListHolderRulesResponse, error) {
		return n.admin.ListHolderRules(ctx, request)
	})
	if err != nil {
		return nil, err
	}
	workflows, err := listWorkflows(ctx, c, "", mode)
	if err != nil {
		return nil, err
	}
	file := &quotafile.File{Holders: rules.Holders, HasHolders: len(rules.Holders) > 0, HasWorkflows: len(workflows.Workflows) > 0}
	for _, workflow := range workflows.Workflows {
		file.Workflows = append(file.Workflows, workflow.Definition)
	}
	return file, nil
}

// printQuotas prints quotas; as YAML, together with the rules and workflows of file.
func (a *App) printQuotas(all *quotav1.ListQuotasResponse, file *quotafile.File) error {
	switch a.format {
	case formatJSON:
		return output.JSON(a.Out, all)
	case formatYAML:
		for _, quota := range all.Quotas {
			file.Quotas = append(file.Quotas, quota.Definition)
		}
		text, err := quotafile.Write(file)
		if err != nil {
			return err
		}
		_, err = a.Out.Write(text)
		return err
	}
	table := output.Table{Header: []string{"NAME", "RULE", "USABLE", "HELD", "CONSUMED", "AVAILABLE", "WAITING", "COOLDOWN"}}
	for _, quota := range all.Quotas {
		table.Add(quota.Definition.Name, ruleText(quota.Definition), output.Int(quota.Usable), output.Int(quota.Held),
			output.Int(quota.Consumed), output.Int(quota.AvailableWithParents), output.Int(quota.Waiting),
			output.Duration(quota.CooldownLeft))
	}
	return table.Write(a.Out)
}

func (a *App) quotaDelete() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a quota",
		Long: `Delete a quota. The command is refused while leases hold amounts of it, amounts count against it or other quotas have it as
their parent; --force ends its leases' items first.`,
		Example: `  quotad quota delete old/quota`,
		Args:    arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			request := &quotav1.DeleteQuotaRequest{Name: args[0], Force: force}
			answer, err := call(cmd.Context(), c, removes, 0, func(ctx context.Context, n node) (*quotav1.DeleteQuotaResponse, error) {
				return n.admin.DeleteQuota(ctx, request)
			})
			if err != nil {
				return err
			}
			if a.format == formatJSON {
				return output.JSON(a.Out, answer)
			}
			_, err = fmt.Fprintln(a.Out, "deleted", output.Visible(strings.TrimSpace(args[0])))
			return err
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "end the items of leases that hold some of it")
	return a.clientFlags(cmd)
}
