"""The command line: one command a file, imported when it is called. The only room that sees edge and cloud."""
