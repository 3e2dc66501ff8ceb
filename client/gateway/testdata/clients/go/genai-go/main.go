// Command genai-go makes a stream with Google's SDK. Only GOOGLE_GEMINI_BASE_URL names the gateway.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"google.golang.org/genai"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	client, err := genai.NewClient(ctx, nil)
	if err != nil {
		return err
	}
	for chunk, err := range client.Models.GenerateContentStream(ctx, "gemini-3", genai.Text("Hello"), nil) {
		if err != nil {
			return err
		}
		usage, err := json.Marshal(chunk.UsageMetadata)
		if err != nil {
			return err
		}
		fmt.Printf("%q %s\n", chunk.Text(), usage)
	}
	return nil
}
