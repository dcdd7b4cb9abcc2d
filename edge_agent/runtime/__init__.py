"""Processes: loops that wait for events, pass them to machines and perform their actions.

- loop: one machine as a process; node_loop: shared by gateways and regions; gateway, region, lander: one role each
- build: from settings to a node's process; links: from settings to connections
- action_executor: performs the actions of a node's machine
- status_and_commands: a node's status, an operator's commands; fleet_commands: commands to all nodes
- quarantine: the file of bad bytes; refusals: counts of refused messages by reason
- root_report: counts of the root's omissions and failures, for the lander's status
- start_record: the message that a killed process was handling
- guard: leaves out messages that cannot be handled; after a failure the process continues from its last commit
"""
