"""Shared by several commands.

broker_listener    options that name a broker, and its messages
fleet_listener     what the nodes of several brokers say, asked or retained
message_rendering  messages as plain values and as lines of text
progress           a progress bar on standard error
serving            file, dry run and signals of the commands that run a node
size_estimates     expected sizes of a plan, for `explain`
spool_form         the version of a spool on the disk, for updates
"""
