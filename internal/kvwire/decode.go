package kvwire

import "errors"

// DefaultMaxPayload is the largest batch that is decoded, in bytes.
const DefaultMaxPayload = 16 << 20

// Decoder decodes batches of any layout, each event by its own form. The zero value is
// ready; it is for one goroutine at a time.
type Decoder struct {
	MaxPayload int // bytes of one batch; default DefaultMaxPayload
	MaxTokens  int // tokens of one event; default 2 Mi
	MaxHashes  int // hashes of one event; default 256 Ki
}

// Decode decodes one payload into b, whose memory it uses again: what b held before is
// gone. Unknown events and fields are skipped and counted, never an error.
func (d *Decoder) Decode(payload []byte, b *Batch) error { return errors.ErrUnsupported }
