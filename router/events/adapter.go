package events

import "github.com/warmroute/warmroute/internal/kvwire"

// maxAdapters bounds the LoRA names whose ids are remembered.
const maxAdapters = 10_000

// adapter is a LoRA adapter by name.
type adapter struct {
	key   uint32
	id    int64
	hasID bool
}

// adapterOf returns the key of the event's LoRA adapter, 0 for none, and whether it
// must stay silent: an id without a name says that it is not the base model, but not
// what it is. A known name with another id was loaded anew, so its blocks are stale.
func (t *Translator) adapterOf(e *kvwire.Event) (key uint32, silent bool) {
	if e.LoRAName == "" {
		return 0, e.HasLoRAID
	}
	a := t.adapters[e.LoRAName]
	if a == nil {
		if len(t.adapters) == maxAdapters {
			clear(t.adapters) // their next reload goes unnoticed
		}
		t.nextKey++
		a = &adapter{key: t.nextKey}
		t.adapters[e.LoRAName] = a
	}
	if e.HasLoRAID {
		if a.hasID && a.id != e.LoRAID {
			t.stats.AdapterReloads++
			for h, n := range t.nodes {
				if n.adapter == a.key {
					t.forget(h, n)
				}
			}
			t.orphans.dropAdapter(a.key)
		}
		a.id, a.hasID = e.LoRAID, true
	}
	return a.key, false
}
