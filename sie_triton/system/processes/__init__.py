"""Processes of the server, from start to end: tritonserver, controller, fork servers, workers.

pids        processes by pid, protected against reused pids; stand-ins for forked processes
child       a child process: start, wait, end, and how it ended in words
command_line  secrets in command lines
fork_server the fork server
supervisor  restarts programs that die, or whose heartbeats stop
signals     what ends a command, and when it is heeded
log         their logs, bounded in size and rate
limits      their waits, heartbeats and logs, in numbers
channel     messages between two processes; large arrays go through shared memory
"""
