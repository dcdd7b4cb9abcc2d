"""Which definitions a node runs.

- registry: revisions, scopes and limits; the document of the `state` topic
- rejection: why the newest revision of a definition is not in force
- crosscheck: limits, missing sensors and labels; capacity: the same counted along, so that thousands stay cheap
- revision_numbering: a parent numbers definitions without a revision and passes them down
- unserved_report: what of a file a gateway would not run, for `headwater check`
"""
