"""Code that several commands share.

broker_listener    options that name a broker, and reading its messages
fleet_listener     retained messages and answers of nodes at several brokers
message_rendering  messages as plain values and as lines of text
option_values      values of options that several commands have
progress           a progress bar on standard error
serving            settings, dry run and signals for the commands that run a node
size_estimates     expected sizes of a plan, for `explain`
spool_form         the version of a spool on the disk, for `update`
"""
