package kv

import (
	"strconv"

	"github.com/zeebo/xxh3"
)

// mmDigits is the length of a 256-bit content digest in hex, the form in which engines
// name images and audio unless the user gave a name of his own.
const mmDigits = 64

// MMHash returns the content hash, as HashBlock takes it, of the image or audio that an
// engine calls id: the first 64 bits of a hex digest, else the hash of the name. Digests
// are cut and not hashed again, so that they equal what Dynamo makes of them.
func MMHash(id string) uint64 {
	if len(id) == mmDigits && isHex(id) {
		h, _ := strconv.ParseUint(id[:16], 16, 64)
		return h
	}
	return xxh3.HashString(id)
}

func isHex(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}
