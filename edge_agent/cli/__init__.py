"""The command line: one module per command, imported when it is called. The only room that sees edge and cloud.

main      the front: finds the command, prints errors, returns exit codes
init      write a commented settings file
check     list every mistake of settings, sensors and queries
run       the process of a gateway
merge     the process of a region
land      the top of the tree on MQTT: frames to landing files
root      landing files to Delta tables, with Spark
query     SQL over the tables
audit     whether the books of a tree balance
peek      messages of a broker as text
explain   where the parts of a query are computed, and why
simulate  sensors and queries in one process, without a network
replay    recordings through the tree
maintain  compact and clean the tables
fleet     the commands for certificates, brokers, images, updates and the state of nodes
demo      the whole tree on this machine
support   what several commands share
"""
