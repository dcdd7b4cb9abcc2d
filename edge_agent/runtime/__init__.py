"""Processes: the place that waits, and what it performs for the machines.

- loop: one machine as a process; node_loop: what gateways and regions share; gateway, region, lander: one role each
- build: from settings to a node's process; links: from settings to connections
- action_executor: performs the actions of a node's machine
- status_and_commands: a node's status, an operator's commands; fleet_commands: commands to all nodes
- quarantine: the file of bad bytes; refusals: counts of refused messages by reason
- root_report: what the root left out, in the lander's status
- start_record: what killed processes were handling
- guard: leaves out messages that cannot be handled; the process begins again from its last commit
"""
