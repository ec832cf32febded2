package upstream

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/prompt"
)

// DoctorConfig says what Doctor may do and know.
type DoctorConfig struct {
	// Generate lets it send each worker one prompt twice, for one token each.
	Generate bool
	// Models says where tokenizer files are, as for serve; without Find none are looked for.
	Models prompt.ModelsConfig
}

// oneTokenizer lets one tokenizer be in memory at a time: each may take 100 MB.
var oneTokenizer sync.Mutex

// engineTokens are those of one worker. It is prompt.Source.
type engineTokens struct{ w *Worker }

func (e engineTokens) Tokenize(ctx context.Context, _ string, kind openai.Kind, body []byte) (prompt.Tokens, error) {
	return e.w.tokenize(ctx, kind, body)
}

// checkLocal compares the tokens that this process makes of the worker's model with the
// engine's, by the check of serve. It says nothing where nobody names files.
func (w *Worker) checkLocal(ctx context.Context, d *Diagnosis, f *facts, cfg prompt.ModelsConfig) {
	if cfg.Find == nil {
		return
	}
	const check = "local tokens"
	oneTokenizer.Lock()
	defer oneTokenizer.Unlock()
	models := prompt.NewModels(cfg)
	models.Offer(d.model, d.root, prompt.StyleOf(f.engine).At(f.version))
	unknown := models.Describe(d.model)
	if unknown == "" {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // waited for below
		defer close(done)
		_ = models.Run(ctx, func(prompt.Style) prompt.Source { return engineTokens{w} })
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for models.Describe(d.model) == unknown && ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	cancel()
	<-done
	found := models.Describe(d.model)
	switch wrong := models.Degraded(); {
	case len(wrong) > 0:
		d.add(check, CheckFail, "%s: give --model-path the tokenizer and chat template that the engine runs with; until then it tokenizes every prompt itself",
			strings.TrimPrefix(wrong[0], "model "+d.model+": "))
	case found == unknown:
		d.add(check, CheckWarn, "not checked")
	case strings.HasPrefix(found, "local, compared"):
		d.add(check, CheckOK, "%s", found)
	default:
		d.add(check, CheckWarn, "%s", found)
	}
}
