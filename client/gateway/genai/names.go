package genai

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/usage"
	"github.com/quotad/quotad/rpc/signals"
)

// scope is the instrumentation scope of all spans and measurements.
const scope = "github.com/quotad/quotad/client/gateway"

// The values of gen_ai.operation.name that a gateway sees.
const (
	OperationChat       = "chat"
	OperationCompletion = "text_completion"
	OperationContent    = "generate_content"
	OperationEmbeddings = "embeddings"
)

// The attributes of spans and measurements.
const (
	keyOperation     = attribute.Key("gen_ai.operation.name")
	keyProvider      = attribute.Key("gen_ai.provider.name")
	keyRequestModel  = attribute.Key("gen_ai.request.model")
	keyResponseModel = attribute.Key("gen_ai.response.model")
	keyResponseID    = attribute.Key("gen_ai.response.id")
	keyFirstChunk    = attribute.Key("gen_ai.response.time_to_first_chunk")
	keyInput         = attribute.Key("gen_ai.usage.input_tokens")
	keyCacheRead     = attribute.Key("gen_ai.usage.cache_read.input_tokens")
	keyCacheCreation = attribute.Key("gen_ai.usage.cache_creation.input_tokens")
	keyOutput        = attribute.Key("gen_ai.usage.output_tokens")
	keyReasoning     = attribute.Key("gen_ai.usage.reasoning.output_tokens")
	keyTokenType     = attribute.Key("gen_ai.token.type")
	keyError         = attribute.Key("error.type")
	keyStatus        = attribute.Key("http.response.status_code")
	keyAddress       = attribute.Key("server.address")
	keyPort          = attribute.Key("server.port")
)

// The values of gen_ai.token.type.
const (
	tokenInput  = "input"
	tokenOutput = "output"
)

// The measurements.
const (
	metricTokens   = "gen_ai.client.token.usage"
	metricDuration = "gen_ai.client.operation.duration"
	metricFirst    = "gen_ai.client.operation.time_to_first_chunk"
)

// The buckets that the conventions name.
var (
	tokenBuckets  = []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}
	secondBuckets = []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
)

// ProviderOf returns the value of gen_ai.provider.name for the provider of a dialect. One that the conventions have no name for keeps the
// name of its dialect.
func ProviderOf(d dialect.Name) string {
	switch d {
	case dialect.Azure:
		return "azure.ai.openai"
	case dialect.Bedrock:
		return "aws.bedrock"
	case dialect.Gemini:
		return "gcp.gemini"
	case dialect.OpenAI, dialect.Codex:
		return "openai"
	default:
		return string(d)
	}
}

// usageKey is an attribute that counts tokens.
type usageKey struct {
	key   attribute.Key
	count signals.Count
}

// usageKeys returns the attributes of what was used. Both sides count cached input as input.
func usageKeys(u usage.Usage) []usageKey {
	return []usageKey{
		{keyInput, u.Input}, {keyCacheRead, u.Cached}, {keyCacheCreation, u.Written}, {keyOutput, u.Output}, {keyReasoning, u.Reasoning},
	}
}
