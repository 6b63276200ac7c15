"""PDF files as pictures of their pages, drawn by a process that can do nothing else.

draw      that process
document  one of them, as the process that started it sees it
"""
