"""From a `Decision` on frames to a `Work`, the list of rows to write. Both roots execute the same `Work`.

decide               `step`: which windows close and which are revised at one decision
transition           `decided`: a decision, its step, and cleaning up after it; needed: which rows may be forgotten
work                 `Work` and the records in it; their bytes in ops.batches
withdrawals          why a row is withdrawn
root_state           the state between decisions: `RootState`, `RootLimits`
read_plan            which plans feed which query, and the shapes of states
window_ranges        ranges of time windows, cut where their coverage changes
session_queries      pieces of sessions to their queries; session_tracker: what is open; session_coverage: grid of
                     coverages
punctuation_queries  windows between markers as ranges
ordered_queries      which raw readings get positions
too_late             which readings are in no result
ops_rows             rows of ops.queries, ops.sensors, ops.gaps and ops.nodes
"""
