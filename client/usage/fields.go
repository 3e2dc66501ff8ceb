package usage

import "github.com/quotad/quotad/rpc/signals"

// field is a member of an answer that is read.
type field uint8

// Counts. The first of each family is its input.
const (
	noField field = iota
	// Of OpenAI's chat, and of those that copy it.
	promptTokens
	completionTokens
	totalTokens
	promptCached
	promptWritten
	completionReasoning
	// Of OpenAI's Responses, pictures and transcriptions, and of Anthropic.
	inputTokens
	outputTokens
	inputCached
	outputReasoning
	cacheCreation
	cacheRead
	cacheCreation5m
	cacheCreation1h
	// Of Gemini.
	promptCount
	toolUseCount
	cachedCount
	candidatesCount
	thoughtsCount
	totalCount
	// Of Bedrock: Converse, and what it adds to any stream.
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
	// visible is text that the model wrote.
	visible
	// chunk is the payload of an event of InvokeModelWithResponseStream, in base64.
	chunk
	fields
)

// values are the counts that were read.
type values [counts]signals.Count

// set takes a number; the last value counts.
func (v *values) set(f field, n int64) {
	v[f] = signals.Count{N: min(n, MaxCount), Known: true}
}

// usage adds the families up. Of several, the first that said anything counts: Bedrock's own counts are of what the model said as well.
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

// separate is a family whose input is without what a cache was read for and written with.
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

// rest is what is left of a total, as far as both are known.
func rest(total, part signals.Count) signals.Count {
	if !total.Known || !part.Known || total.N < part.N {
		return signals.Count{}
	}
	return signals.Count{N: total.N - part.N, Known: true}
}
