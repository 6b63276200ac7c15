"""Starts, watches from birth, and ends every process of ours: tritonserver, controller, nursery, workers.

pids        what the system says of a pid; which process it was meant to be
child       a process of ours: started, waited for, ended, and how it ended in words
hidden      a start with arguments that nobody else can read
nursery     a process that forks others
supervisor  starts again what dies
channel     messages between two processes; large arrays go through memory that both have mapped
"""
