"""Values <-> CBOR bytes: frames, receipts, readings, landing files, spool slots. schemas/*.cddl is normative."""
