// Package hub answers the question: where are the tokenizer files of this model?
//
//	"org/name" ─▶ Dir ─▶ commit of the revision ─▶ what the cache lacks ─▶ snapshot directory
//	                        HEAD tokenizer.json        GET, one by one
//	                          │ hub away, or offline
//	                          └──────▶ the snapshot that the cache holds for the revision
//
// The cache on disk has the layout of Python's huggingface_hub, so that one cache serves an
// engine and this process, whoever fills it (https://huggingface.co/docs/hub/local-cache):
//
//	models--org--name/
//	    blobs/<etag>                        contents
//	    snapshots/<commit>/<file>           relative link to a blob, a copy where links fail
//	    refs/<revision>                     the commit last seen under a branch or tag
//	    .no_exist/<commit>/<file>           empty: the repository has no such file at that commit
//
// Every file appears by rename, so readers never see half of one; two processes may both
// download a file and both rename it. A snapshot gets its tokenizer.json after everything
// else and a ref moves last: a download that breaks off leaves the previous snapshot in
// charge.
//
// Only the files that decide tokens are fetched, never weights. The package reads no
// tokenizer and keeps nothing in memory between calls.
package hub
