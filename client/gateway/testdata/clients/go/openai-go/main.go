// Command openai-go makes a chat, plain and as a stream, with OpenAI's SDK, like an agent. Only OPENAI_BASE_URL names the gateway. With
// the argument loop it makes call after call until a time (UNTIL, in Unix seconds), and prints the outcome of each.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/openai/openai-go/v3"
)

func main() {
	work := run
	if len(os.Args) > 1 && os.Args[1] == "loop" {
		work = loop
	}
	if err := work(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	client := openai.NewClient()
	ask := func(model string) openai.ChatCompletionNewParams {
		return openai.ChatCompletionNewParams{Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")}}
	}
	plain, err := client.Chat.Completions.New(ctx, ask("gpt-5"))
	if err != nil {
		return err
	}
	fmt.Println(plain.RawJSON())
	stream := client.Chat.Completions.NewStreaming(ctx, ask("gpt-5"))
	for stream.Next() {
		fmt.Println(stream.Current().RawJSON())
	}
	if err := stream.Err(); err != nil {
		return err
	}
	_, err = client.Chat.Completions.New(ctx, ask("gpt-none"))
	if refused, ok := errors.AsType[*openai.Error](err); ok {
		fmt.Println(refused.StatusCode, refused.Message)
		return nil
	}
	return fmt.Errorf("a model without a quota: %v", err)
}

func loop(ctx context.Context) error {
	until, err := strconv.ParseInt(os.Getenv("UNTIL"), 10, 64)
	if err != nil {
		return err
	}
	client := openai.NewClient()
	for time.Now().Unix() < until {
		_, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
			Model: "gpt-5", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")}, MaxCompletionTokens: openai.Int(50),
		})
		if err != nil {
			fmt.Println("lost", err)
			continue
		}
		fmt.Println("ok")
	}
	return nil
}
