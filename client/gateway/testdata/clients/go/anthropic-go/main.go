// Command anthropic-go makes a stream with Anthropic's SDK, and prints each event and the whole message. Only ANTHROPIC_BASE_URL names
// the gateway.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/anthropics/anthropic-sdk-go"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	client := anthropic.NewClient()
	stream := client.Messages.NewStreaming(ctx, anthropic.MessageNewParams{
		Model: "claude-opus-4-20250929", MaxTokens: 32000,
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("Hello"))},
	})
	var message anthropic.Message
	for stream.Next() {
		fmt.Println(stream.Current().RawJSON())
		if err := message.Accumulate(stream.Current()); err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(message)
}
