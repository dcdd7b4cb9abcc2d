"""Converts values to CBOR bytes and back. The files schemas/*.cddl are normative.

- cbor: strict decoding of untrusted bytes; fields: limits, and checks that all parts of a frame share
- frames: frames and heartbeats; definitions, members, sections: the parts of a frame; columns/: the columns of a
  section
- heads: splits a frame into a head and parts, as the root stores it
- late_starts: the earliest late row or gap record of a frame, for the lander
- receipts, readings, landing: receipts, batches of a sensor's readings, landing files
- snapshot: state of machines in slots of the spool
"""
