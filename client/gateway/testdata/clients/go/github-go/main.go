// Command github-go lists all pages of repositories with go-github, which treats GITHUB_API_URL as an Enterprise server: the calls have
// the prefix /api/v3.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/google/go-github/v93/github"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	base := os.Getenv("GITHUB_API_URL")
	client, err := github.NewClient(github.WithAuthToken("ghp_made_up"), github.WithEnterpriseURLs(base, base))
	if err != nil {
		return err
	}
	pages := &github.RepositoryListByAuthenticatedUserOptions{ListOptions: github.ListOptions{PerPage: 1}}
	for repository, err := range client.Repositories.ListByAuthenticatedUserIter(ctx, pages) {
		if err != nil {
			return err
		}
		fmt.Println(repository.GetID())
	}
	return nil
}
