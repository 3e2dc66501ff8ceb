package usage

import "maps"

// node is a place in an answer with a value to read.
type node struct {
	field   field
	members map[string]*node
	// array: the value may be an array of such values.
	array bool
}

type members = map[string]*node

func leaf(f field) *node             { return &node{field: f} }
func object(m members) *node         { return &node{members: m} }
func list(m members) *node           { return &node{members: m, array: true} }
func texts(names ...string) *node    { return &node{members: textMembers(names...)} }
func textList(names ...string) *node { return &node{members: textMembers(names...), array: true} }

func textMembers(names ...string) members {
	m := members{}
	for _, name := range names {
		m[name] = leaf(visible)
	}
	return m
}

// join returns the members of all parts.
func join(parts ...members) members {
	all := members{}
	for _, m := range parts {
		maps.Copy(all, m)
	}
	return all
}

var usageNode = object(members{
	"type":              leaf(usageType),
	"service_tier":      leaf(serviceTier),
	"prompt_tokens":     leaf(promptTokens),
	"completion_tokens": leaf(completionTokens),
	"total_tokens":      leaf(totalTokens),
	"prompt_tokens_details": object(members{
		"cached_tokens": leaf(promptCached), "cache_write_tokens": leaf(promptWritten),
	}),
	"completion_tokens_details": object(members{"reasoning_tokens": leaf(completionReasoning)}),

	"input_tokens":                leaf(inputTokens),
	"output_tokens":               leaf(outputTokens),
	"input_tokens_details":        object(members{"cached_tokens": leaf(inputCached)}),
	"output_tokens_details":       object(members{"reasoning_tokens": leaf(outputReasoning)}),
	"cache_creation_input_tokens": leaf(cacheCreation),
	"cache_read_input_tokens":     leaf(cacheRead),
	"cache_creation": object(members{
		"ephemeral_5m_input_tokens": leaf(cacheCreation5m), "ephemeral_1h_input_tokens": leaf(cacheCreation1h),
	}),

	"inputTokens":           leaf(converseInput),
	"outputTokens":          leaf(converseOutput),
	"cacheReadInputTokens":  leaf(converseRead),
	"cacheWriteInputTokens": leaf(converseWrite),
})

var errorNode = object(members{
	"type": leaf(errorType), "code": leaf(errorCode), "message": leaf(errorMessage), "status": leaf(errorStatus),
})

// messageMembers are the members of a message of OpenAI's chat, whole or in pieces, and of pieces of Anthropic's and Converse's.
var messageMembers = join(textMembers("content", "reasoning_content", "refusal", "text", "thinking", "partial_json"), members{
	"tool_calls":       list(members{"function": texts("name", "arguments")}),
	"function_call":    texts("name", "arguments"),
	"toolUse":          texts("input"),
	"reasoningContent": texts("text"),
})

var root = list(members{
	"id": leaf(answerID), "responseId": leaf(answerID),
	"model": leaf(modelName), "modelVersion": leaf(modelName),
	"conversation": object(members{"id": leaf(conversationID)}),
	"type":         leaf(eventType),
	"service_tier": leaf(serviceTier),
	"usage":        usageNode,
	"error":        errorNode,
	// An error in Responses' streams, and an exception of Bedrock's.
	"code": leaf(rootCode), "message": messageOrText,
	"response": object(members{
		"id": leaf(answerID), "model": leaf(modelName), "service_tier": leaf(serviceTier),
		"conversation": object(members{"id": leaf(conversationID)}),
		"usage":        usageNode, "error": errorNode,
	}),
	"usageMetadata": object(members{
		"promptTokenCount": leaf(promptCount), "toolUsePromptTokenCount": leaf(toolUseCount), "cachedContentTokenCount": leaf(cachedCount),
		"candidatesTokenCount": leaf(candidatesCount), "thoughtsTokenCount": leaf(thoughtsCount), "totalTokenCount": leaf(totalCount),
	}),
	"amazon-bedrock-invocationMetrics": object(members{
		"inputTokenCount": leaf(metricsInput), "outputTokenCount": leaf(metricsOutput),
		"cacheReadInputTokenCount": leaf(metricsRead), "cacheWriteInputTokenCount": leaf(metricsWrite),
	}),
	"bytes": leaf(chunk),

	"choices": list(join(textMembers("text"), members{
		"delta": object(messageMembers), "message": object(messageMembers),
	})),
	"delta":      {field: visible, members: messageMembers},
	"content":    textList("text", "thinking"),
	"candidates": list(members{"content": object(members{"parts": textList("text")})}),
	"output": list(join(textMembers("arguments"), members{
		"content": textList("text"),
		"message": object(members{"content": textList("text")}),
	})),
})

// messageOrText is Anthropic's message at the start of a stream, or the text of an error.
var messageOrText = &node{field: rootMessage, members: members{
	"id": leaf(answerID), "model": leaf(modelName), "usage": usageNode,
}}
