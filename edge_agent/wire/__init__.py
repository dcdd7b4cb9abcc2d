"""Values <-> CBOR bytes. The files in schemas/*.cddl are normative.

- cbor: strict decoding of untrusted bytes; fields: limits and small readers shared by all parts of a frame
- frames: frames and heartbeats; definitions, members, sections: the parts of a frame; columns/: the
  columns of a section
- heads: a frame as the root stores it: head and parts
- late_starts: where late rows and gap records of a frame begin, for the lander
- receipts, readings, landing: receipts, batches of a sensor, landing files
- snapshot: state of machines in spool slots
"""
