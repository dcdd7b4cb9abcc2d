"""The command line: one module per command, imported when it is called. Only this room imports both edge and cloud.

main      finds and runs the command, prints errors, returns exit codes
init      writes a commented settings file
check     lists every mistake in settings, sensors and queries
run       runs a gateway
merge     runs a region
land      runs the lander: frames from MQTT to landing files
root      runs the Spark job: landing files to Delta tables
query     runs SQL over the tables
audit     checks that the books of a tree balance
peek      prints messages of a broker as text
explain   shows where the parts of a query are computed, and why
simulate  runs sensors and queries in one process, without a network
replay    runs recordings through the tree
maintain  compacts and cleans the tables
fleet     commands for certificates, brokers, images, updates and the state of nodes
demo      runs the whole tree on this machine
support   code that several commands share
"""
