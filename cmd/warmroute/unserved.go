package main

import (
	"context"
	"slices"
	"time"

	"github.com/warmroute/warmroute/proxy"
)

// modelNames are the models that one setting names.
type modelNames struct {
	setting string
	names   []string
}

// modelNames lists the settings that have an effect only for a model that somebody serves.
func (c *config) modelNames(keys []proxy.Key) []modelNames {
	list := []modelNames{
		{"tokenizer.models", mapKeys(c.Tokens.Models)},
		{"speculative_prefill.models", mapKeys(c.Prefill.Models)},
	}
	for _, alias := range mapKeys(c.Aliases) {
		list = append(list, modelNames{"model_aliases." + alias, []string{c.Aliases[alias]}})
	}
	for _, k := range keys {
		names := slices.DeleteFunc(slices.Clone(k.Models), func(m string) bool { _, alias := c.Aliases[m]; return alias })
		list = append(list, modelNames{"models of the API key " + k.Name, names})
	}
	return list
}

func mapKeys(m map[string]string) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// unservedAfter is how long workers that do not answer are waited for before names are
// compared with what the others serve.
const unservedAfter = 30 * time.Second

// warnUnserved compares the models that the configuration names with those that are served,
// once all workers have told or have had time to.
func (p *parts) warnUnserved(ctx context.Context) {
	late := time.NewTimer(unservedAfter)
	defer late.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for waiting := true; waiting; {
		select {
		case <-ctx.Done():
			return
		case <-late.C:
			waiting = false
		case <-tick.C:
			list := p.fleet.Status()
			waiting = len(list) == 0
			for i := range list {
				waiting = waiting || len(list[i].Models) == 0
			}
		}
	}
	var served []string
	for _, m := range p.fleet.Models() {
		served = append(served, m.ID)
	}
	if len(served) == 0 {
		return // what is wrong is another thing, and said
	}
	for _, s := range p.names {
		for _, name := range s.names {
			if !slices.Contains(served, name) {
				p.log.Warn("no worker serves a model that the configuration names"+didYouMean(closest(name, served)), "setting", s.setting, "model", name, "served", served[:min(len(served), 10)])
			}
		}
	}
}
