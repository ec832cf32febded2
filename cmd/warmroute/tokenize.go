package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/router/kv"
)

// tokenizeFlags are those of the verb tokenize.
type tokenizeFlags struct {
	model     string
	engine    string
	text      string
	date      string
	blockSize int
	lora      string
	salt      string
	json      bool
	render    bool
	offline   bool
	hasText   bool // --text was given, be it empty
}

// maxInput bounds the request in bytes.
const maxInput = 64 << 20

func newTokenize() *cobra.Command {
	var f tokenizeFlags
	cmd := &cobra.Command{
		Use:   "tokenize --model-path DIR [FILE]",
		Short: "Show the rendered prompt, token ids and block hashes of a text or a request",
		Long: `tokenize makes the tokens that serve makes: a request body is rendered by the model's
chat template, then tokenized, then hashed block by block. The body is an OpenAI chat
completion (messages) or completion (prompt), from FILE or standard input. A request
whose tokens serve would leave to the engine is refused with the reason; of several
prompts each one is shown.`,
		Example: `  warmroute tokenize --model-path Qwen/Qwen3-8B --text 'Hello, world'
  echo '{"messages":[{"role":"user","content":"Hi"}]}' | warmroute tokenize --model-path ./Qwen3-8B
  warmroute tokenize --model-path ./Qwen3-8B --json --block-size 16 request.json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return &usageError{fmt.Errorf("one file at most, got %d", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.hasText = cmd.Flags().Changed("text")
			body, err := f.body(cmd.InOrStdin(), args)
			if err != nil {
				return &usageError{err}
			}
			log := logConfig{Level: "warn", Format: "text"}
			m, err := loadModel(cmd.Context(), f.model, tokenizerConfig{Offline: f.offline}, log.logger(cmd.ErrOrStderr()))
			if err != nil {
				return err
			}
			return f.run(cmd.OutOrStdout(), m, body)
		},
	}
	p := cmd.Flags()
	p.StringVar(&f.model, "model-path", "", "`directory or Hugging Face id` with tokenizer.json and the chat template (required)")
	p.StringVar(&f.text, "text", "", "a text instead of a request; it is a completion's prompt")
	p.StringVar(&f.engine, "engine", "vllm", "whose way of preparing messages: vllm or sglang")
	p.StringVar(&f.date, "date", "", "date that templates print, as `YYYY-MM-DD`; today by default")
	p.IntVar(&f.blockSize, "block-size", 16, "tokens of a block")
	p.StringVar(&f.lora, "lora", "", "LoRA adapter, part of the hashes")
	p.StringVar(&f.salt, "cache-salt", "", "cache salt, part of the hashes")
	p.BoolVar(&f.json, "json", false, "print one JSON object, or one a line where there are several prompts")
	p.BoolVar(&f.render, "render", false, "print the rendered prompt alone, byte for byte")
	p.BoolVar(&f.offline, "offline", false, "take files from disk only")
	return cmd
}

// body returns the request: of --text, of a file or of standard input.
func (f *tokenizeFlags) body(stdin io.Reader, args []string) ([]byte, error) {
	switch {
	case f.model == "":
		return nil, fmt.Errorf("--model-path is missing: give a directory or a Hugging Face id such as Qwen/Qwen3-8B")
	case f.blockSize < 1:
		return nil, fmt.Errorf("--block-size %d: must be at least 1", f.blockSize)
	case f.engine != "vllm" && f.engine != "sglang":
		return nil, fmt.Errorf("--engine %q is none of vllm, sglang", f.engine)
	case f.json && f.render:
		return nil, fmt.Errorf("--json and --render are two outputs: give one")
	case f.hasText && len(args) > 0:
		return nil, fmt.Errorf("--text and a file are two inputs: give one")
	case f.hasText:
		return append(openai.AppendString([]byte(`{"prompt":`), f.text), '}'), nil
	case len(args) > 0 && args[0] != "-":
		file, err := os.Open(args[0])
		if err != nil {
			return nil, err
		}
		defer file.Close()
		return readInput(file, args[0])
	}
	return readInput(stdin, "standard input")
}

// readInput reads a request, which may come from a pipe or a device that never ends.
func readInput(r io.Reader, name string) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case len(body) > maxInput:
		return nil, fmt.Errorf("%s: more than %d MiB: that is no request", name, maxInput>>20)
	case len(bytes.TrimSpace(body)) == 0:
		return nil, fmt.Errorf("%s is empty: give a request as JSON, or --text", name)
	}
	return body, nil
}

// tokenized is the JSON of the verb.
type tokenized struct {
	Prompt         string            `json:"prompt"`
	Tokens         []uint32          `json:"tokens"`
	Count          int               `json:"count"`
	BlockSize      int               `json:"block_size"`
	SequenceHashes []kv.SequenceHash `json:"sequence_hashes"`
}

func (f *tokenizeFlags) run(w io.Writer, m *prompt.Model, body []byte) error {
	if f.date != "" {
		day, err := time.ParseInLocation(time.DateOnly, f.date, time.Local)
		if err != nil {
			return &usageError{fmt.Errorf("--date %q is no date such as 2026-01-31", f.date)}
		}
		m.Now = func() time.Time { return day }
	}
	kind, bodies, err := requests(body)
	if err != nil {
		return &usageError{err}
	}
	if f.render && len(bodies) > 1 {
		return &usageError{fmt.Errorf("--render prints one prompt, the request has %d", len(bodies))}
	}
	for _, body := range bodies {
		if err := f.show(w, m, kind, body); err != nil {
			return err
		}
	}
	return nil
}

// show prints one prompt.
func (f *tokenizeFlags) show(w io.Writer, m *prompt.Model, kind openai.Kind, body []byte) error {
	style := prompt.StyleOf(f.engine)
	if err := m.Exact(kind, body, style); err != nil {
		return err
	}
	text, err := m.Render(kind, body, style)
	if err != nil {
		return err
	}
	if f.render {
		_, err := io.WriteString(w, text)
		return err
	}
	ids, err := m.Tokenize(kind, body, style)
	if err != nil {
		return err
	}
	p := kv.Prompt{Tokens: ids, Namespace: kv.Namespace{LoRA: f.lora, Salt: f.salt}}
	out := tokenized{text, ids, len(ids), f.blockSize, p.Chain(f.blockSize)}
	if f.json {
		return json.NewEncoder(w).Encode(out)
	}
	fmt.Fprintf(w, "prompt   %q\ntokens   %d\n", text, len(ids))
	for i := 0; i < len(ids); i += f.blockSize {
		block := ids[i:min(i+f.blockSize, len(ids))]
		hash := strings.Repeat(" ", 16)
		if n := i / f.blockSize; n < len(out.SequenceHashes) {
			hash = fmt.Sprintf("%016x", uint64(out.SequenceHashes[n]))
		}
		fmt.Fprintf(w, "%s ", hash)
		for _, id := range block {
			fmt.Fprintf(w, " %d:%q", id, m.Decode([]uint32{id}))
		}
		fmt.Fprintln(w)
	}
	return nil
}

// requests tells a chat from a completion, gives the body the model that it may lack and
// makes one body of each of several prompts.
func requests(body []byte) (openai.Kind, [][]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return 0, nil, fmt.Errorf("the request is no JSON object: %w", err)
	}
	if fields["model"] == nil {
		at := strings.IndexByte(string(body), '{') + 1
		body = append(append(append([]byte(nil), body[:at]...), `"model":"m",`...), body[at:]...)
	}
	switch {
	case fields["messages"] != nil:
		return openai.Chat, [][]byte{body}, nil
	case fields["prompt"] == nil:
		return 0, nil, fmt.Errorf("the request has neither messages nor prompt")
	}
	var prompts []json.RawMessage
	if json.Unmarshal(fields["prompt"], &prompts) != nil || len(prompts) == 0 || prompts[0][0] != '"' {
		return openai.Completions, [][]byte{body}, nil
	}
	var bodies [][]byte
	if fields["model"] == nil {
		fields["model"] = json.RawMessage(`"m"`)
	}
	for _, p := range prompts {
		fields["prompt"] = p
		one, err := json.Marshal(fields)
		if err != nil {
			return 0, nil, err
		}
		bodies = append(bodies, one)
	}
	return openai.Completions, bodies, nil
}
