package usage

import "github.com/quotad/quotad/rpc/signals"

// field is a member of an answer that is read.
type field uint8

// Counts. The first of each family is its input.
const (
	noField field = iota
	// OpenAI's chat, and compatible providers.
	promptTokens
	completionTokens
	totalTokens
	promptCached
	promptWritten
	completionReasoning
	// OpenAI's Responses, images and transcriptions, and Anthropic.
	inputTokens
	outputTokens
	inputCached
	outputReasoning
	cacheCreation
	cacheRead
	cacheCreation5m
	cacheCreation1h
	// Gemini.
	promptCount
	toolUseCount
	cachedCount
	candidatesCount
	thoughtsCount
	totalCount
	// Bedrock: Converse, and what it adds to any stream.
	converseInput
	converseOutput
	converseRead
	converseWrite
	metricsInput
	metricsOutput
	metricsRead
	metricsWrite
	counts

	// Strings.
	answerID
	conversationID
	modelName
	serviceTier
	eventType
	usageType
	errorType
	errorCode
	errorMessage
	errorStatus
	rootCode
	rootMessage
	// visible is text from the model.
	visible
	// chunk is the payload of an event of InvokeModelWithResponseStream, in base64.
	chunk
	fields
)

// values are the counts read so far.
type values [counts]signals.Count

// set sets a count; the last value counts.
func (v *values) set(f field, n int64) {
	v[f] = signals.Count{N: min(n, MaxCount), Known: true}
}

// usage returns the usage of the first family with a count: Bedrock's own counts cover the model's counts as well.
func (v *values) usage() Usage {
	switch {
	case v[metricsInput].Known || v[metricsOutput].Known:
		return v.separate(metricsInput, metricsRead, metricsWrite, metricsOutput)
	case v[converseInput].Known || v[converseOutput].Known:
		return v.separate(converseInput, converseRead, converseWrite, converseOutput)
	case v[promptCount].Known || v[candidatesCount].Known:
		return v.gemini()
	case v[promptTokens].Known || v[completionTokens].Known:
		return v.chat()
	case v[inputCached].Known || v[outputReasoning].Known:
		return Usage{
			Input: v[inputTokens], Output: v[outputTokens], Cached: v[inputCached], Reasoning: v[outputReasoning],
		}
	}
	u := v.separate(inputTokens, cacheRead, cacheCreation, outputTokens)
	u.Written1h = v[cacheCreation1h]
	return u
}

// separate returns the usage of a family whose input excludes tokens read from and written to a cache.
func (v *values) separate(input, read, write, output field) Usage {
	u := Usage{Input: v[input], Cached: v[read], Written: v[write], Output: v[output]}
	if u.Input.Known {
		u.Input.N = min(u.Input.N+u.Cached.N+u.Written.N, MaxCount)
	}
	return u
}

func (v *values) chat() Usage {
	u := Usage{
		Input: v[promptTokens], Cached: v[promptCached], Written: v[promptWritten],
		Output: v[completionTokens], Reasoning: v[completionReasoning],
	}
	if !u.Output.Known {
		u.Output = rest(v[totalTokens], u.Input)
	}
	return u
}

func (v *values) gemini() Usage {
	u := Usage{Input: v[promptCount], Cached: v[cachedCount], Output: v[candidatesCount], Reasoning: v[thoughtsCount]}
	u.Input.N = min(u.Input.N+v[toolUseCount].N, MaxCount)
	if u.Reasoning.Known {
		u.Output = signals.Count{N: min(u.Output.N+u.Reasoning.N, MaxCount), Known: true}
	}
	if !u.Output.Known {
		u.Output = rest(v[totalCount], u.Input)
	}
	return u
}

// rest returns the rest of a total, if both counts are known.
func rest(total, part signals.Count) signals.Count {
	if !total.Known || !part.Known || total.N < part.N {
		return signals.Count{}
	}
	return signals.Count{N: total.N - part.N, Known: true}
}
