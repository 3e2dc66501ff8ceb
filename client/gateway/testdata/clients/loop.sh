# Makes call after call until a time (UNTIL, in Unix seconds), and prints what became of each.
while [ "$(date +%s)" -lt "$UNTIL" ]; do
    if said=$(curl -fsS --retry 5 --header "Authorization: Bearer $OPENAI_API_KEY" --header 'Content-Type: application/json' \
        --data '{"model": "gpt-5", "messages": [{"role": "user", "content": "Hello"}], "max_completion_tokens": 50}' \
        "$OPENAI_BASE_URL/chat/completions" 2>&1); then
        echo ok
    else
        echo "lost $said"
    fi
done
