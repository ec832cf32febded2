package tokenizer

// Config is what stands beside tokenizer.json.
type Config struct {
}
